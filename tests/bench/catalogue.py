"""All cases, module by module; targets and plots find them by name.

Those of `tests.bench.striping` are not among them: on two cores they show a price, and no target is
about them. They are run by `python -m tests.bench.striping`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import bulk, consumers, growth, latency, link, memory, objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.case import Case, Scale

__all__ = ["all_cases"]

MODULES = (bulk, objects, consumers, latency, growth, link, memory)
"""Each has `cases(scale) -> Sequence[Case]`."""


def all_cases(scale: Scale) -> Sequence[Case]:
    """Return the cases of all modules, in order."""
    return [case for module in MODULES for case in module.cases(scale)]
