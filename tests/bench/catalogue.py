"""All cases, module by module. A module that is not there yet is left out.

Targets and plots find cases by name: those of `tests.bench.link` are called "link-1g-20ms-kvcs" and
"link-100m-50ms-loss-kvcs", and what they are compared with "-tls" instead of "-kvcs".
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.case import Case, Scale

__all__ = ["all_cases"]

MODULES = (
    "tests.bench.bulk",
    "tests.bench.objects",
    "tests.bench.consumers",
    "tests.bench.latency",
    "tests.bench.growth",
    "tests.bench.link",
)
"""Each has `cases(scale) -> Sequence[Case]`."""


def all_cases(scale: Scale) -> Sequence[Case]:
    """Return the cases of all modules, in order."""
    found: list[Case] = []
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            found += importlib.import_module(name).cases(scale)
    return found
