"""`python -m kvcs.interop_client`."""

import sys

from kvcs.interop_client.main import run

sys.exit(run())
