"""One end of a KVCS transfer: `python -m tests.bench.side.kvcs_main ROLE PLAN`.

ROLE: produce, consume; or crowd, seek, which are about discovery.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from importlib import import_module

from tests.bench.side.inside import pin, plan

HOMES = {
    "produce": "kvcs_ends",
    "consume": "kvcs_ends",
    "crowd": "crowd_ends",
    "seek": "crowd_ends",
}


def main() -> None:
    """Make this process what the plan says, and only then import `kvcs`."""
    given, role = plan(), sys.argv[1]
    pin(given["core"])
    if not given["digests"]:
        from tests.bench.side import without_digest

        without_digest.install()
    end = getattr(import_module(f"tests.bench.side.{HOMES[role]}"), role)
    gc.collect()
    if given["uvloop"]:
        import uvloop

        uvloop.run(end(given))
    else:
        asyncio.run(end(given))


main()
