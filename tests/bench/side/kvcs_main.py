"""One end of a KVCS transfer: `python -m tests.bench.side.kvcs_main ROLE PLAN`.

ROLE: produce, consume; or crowd, seek, which are about discovery.
"""

from __future__ import annotations

import asyncio
import gc
import sys

from tests.bench.side.inside import pin, plan


def main() -> None:
    """Make this process what the plan says, and only then import `kvcs`."""
    given = plan()
    pin(given["core"])
    if not given["digests"]:
        from tests.bench.side import without_digest

        without_digest.install()
    from tests.bench.side import crowd_ends, kvcs_ends

    end = {
        "produce": kvcs_ends.produce,
        "consume": kvcs_ends.consume,
        "crowd": crowd_ends.crowd,
        "seek": crowd_ends.seek,
    }[sys.argv[1]]
    gc.collect()
    if given["uvloop"]:
        import uvloop

        uvloop.run(end(given))
    else:
        asyncio.run(end(given))


main()
