"""An emulated link as the cases use it: up for one round, then gone."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.case import CaseFailed, NotRun
from tests.bench.link_forward import ADDRESSES, LinkSpec
from tests.bench.processes import Side

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Link", "emulated"]

TUN = "/dev/net/tun"
CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@dataclass(frozen=True, slots=True)
class Link:
    """A link that is up. The sender is at its near end."""

    namespaces: tuple[str, str]
    """Of the near and the far end, as paths."""
    side: Side = field(repr=False)
    addresses: tuple[str, str] = ADDRESSES

    def figures(self) -> dict[str, Any]:
        """Return what passed until now; see `link_forward.Forwarder.figures`."""
        self.side.tell(do="figures")
        return self.side.expect("figures")


@contextmanager
def emulated(spec: LinkSpec) -> Iterator[Link]:
    """Bring a link up. Raises: NotRun with the reason."""
    _check()
    side = Side(
        "tests.bench.link_forward",
        "forward",
        asdict(spec),
        core=None,
        python=sys.executable,
        env={},
    )
    try:
        try:
            up = side.expect("up")
        except CaseFailed as failure:
            raise NotRun(f"no emulated link: {failure}") from None
        near, far = up["namespaces"]
        yield Link((near, far), side)
    finally:
        side.end()


def _check() -> None:
    if not sys.platform.startswith("linux"):
        raise NotRun("emulated links need Linux")
    if os.geteuid() != 0:
        raise NotRun("emulated links need root: for network namespaces and TUN devices")
    if not os.access(TUN, os.R_OK | os.W_OK):
        raise NotRun(f"{TUN} is not there")
    if shutil.which("ip") is None:
        raise NotRun("the command ip is not there")
    if "cubic" not in CONGESTION_CONTROLS.read_text().split():
        raise NotRun("this kernel's TCP has no Cubic to compare with")
