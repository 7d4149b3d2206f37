"""One retrieval over several sessions, in one process or in several.

`Consumer.retrieve(sessions=n)` needs nothing from here; `StripedConsumer` has worker processes, and
`shared_arrays` is the memory that they write to. What needs the network is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcs.striping.consumer import MAX_PROCESSES, StripedConsumer
    from kvcs.striping.memory import shared_arrays, shared_empty
    from kvcs.striping.retrieval import MAX_RESTARTS, StripedRetrieval

__all__ = [
    "MAX_PROCESSES",
    "MAX_RESTARTS",
    "StripedConsumer",
    "StripedRetrieval",
    "shared_arrays",
    "shared_empty",
]

_HOMES = {
    "MAX_PROCESSES": "kvcs.striping.consumer",
    "MAX_RESTARTS": "kvcs.striping.retrieval",
    "StripedConsumer": "kvcs.striping.consumer",
    "StripedRetrieval": "kvcs.striping.retrieval",
    "shared_arrays": "kvcs.striping.memory",
    "shared_empty": "kvcs.striping.memory",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcs.striping' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
