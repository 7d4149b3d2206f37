"""`python -m kvcs.interop_client`."""

import sys

from kvcs.interop_client.main import main

sys.exit(main())
