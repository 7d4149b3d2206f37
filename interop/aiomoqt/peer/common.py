"""What the scripts for aiomoqt share; the peers' Python runs them."""

import json
import logging
import os
import sys

from aiomoqt.client import MOQTClient
from aiomoqt.utils.url import parse_relay_url

CERTIFICATE, PRIVATE_KEY = os.environ["CERTIFICATE"], os.environ["PRIVATE_KEY"]
TRACK = b"layers"

logging.basicConfig(level=logging.INFO, stream=sys.stderr)


def fields(text):
    """Read a namespace: its fields in hex, joined by commas."""
    return tuple(bytes.fromhex(field) for field in text.split(","))


def client(url):
    """Return a client for a moqt:// address."""
    address = parse_relay_url(url)
    return MOQTClient(
        address.host,
        address.port,
        path=address.path or "",
        use_quic=True,
        verify_tls=False,
        supported_drafts=22,
    )


def tell(result):
    """Give the result of this script."""
    print("RESULT " + json.dumps(result), flush=True)
