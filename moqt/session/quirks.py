"""What some peers need beyond the draft, by their MOQT_IMPLEMENTATION (MOQT-22 9.1.5).

Each entry names what was seen, against which version, and what is done about it; nothing here
weakens a check. `interop/` shows each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.wire.options import SetupOptions

__all__ = ["fetches_beside_subscription"]

MOQ_RS = "moq-lite-rs"
"""moq-rs 0.5.1 (moq-ffi 0.4.18)."""


def fetches_beside_subscription(options: SetupOptions | None) -> bool:
    """Return whether the peer sends FETCH only while a subscription to the track is open.

    A moq-rs relay that is asked for a Group that it does not hold subscribes upstream first. When
    PUBLISH_DONE answers at once, as for a complete track, it gives up ("dropped").
    """
    return options is not None and options.implementation == MOQ_RS
