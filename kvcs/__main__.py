"""`python -m kvcs` is the command `kvcs`."""

from __future__ import annotations

import sys

from kvcs.cli import main

if __name__ == "__main__":
    sys.exit(main())
