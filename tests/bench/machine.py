"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import ssl
import subprocess
from importlib.metadata import version
from pathlib import Path

from tests.bench.processes import ROOT, pinning

__all__ = ["describe"]

PACKAGES = ("aioquic", "cryptography", "uvloop", "numpy", "ml_dtypes")


def describe() -> dict[str, str]:
    """Return facts by name, for the report."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "processor": f"{_processor()}, {len(_allowed())} of {os.cpu_count()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "network": f"loopback, MTU {_read('/sys/class/net/lo/mtu')}, socket buffers up to "
        f"{_read('/proc/sys/net/core/rmem_max')} octets (rmem_max)",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, "
        f"{ssl.OPENSSL_VERSION}",
        "packages": versions,
        "other implementations": _peers(),
        "revision": _revision(),
        "cores": pinning(),
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / (1 << 20):.0f} GiB"
    return "unknown"


def _peers() -> str:
    pins = [path.read_text().split() for path in sorted(ROOT.glob("interop/*/requirements.txt"))]
    return ", ".join(" ".join(pin.split("==")) for pinned in pins for pin in pinned)


def _revision() -> str:
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"
