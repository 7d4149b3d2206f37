"""The certificate that this run's servers have, in memory and in files."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from moqt.tls import CertificatePair, generate_certificate
from tests.bench.link_forward import ADDRESSES

__all__ = ["certificate", "certificate_files"]

_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when the interpreter exits


@cache
def certificate() -> CertificatePair:
    """Return certificate and key, in PEM, for localhost and the emulated link."""
    return generate_certificate(["localhost", "127.0.0.1", *ADDRESSES], days=1)


@cache
def certificate_files() -> dict[str, str]:
    """Return the paths of the same as `certificate` and `private_key`, for plans."""
    folder = tempfile.TemporaryDirectory(prefix="kvcs-bench-")
    _folders.append(folder)
    paths = {}
    for name in ("certificate", "private_key"):
        path = Path(folder.name, f"{name}.pem")
        path.touch(0o600)
        path.write_bytes(getattr(certificate(), name))
        paths[name] = str(path)
    return paths
