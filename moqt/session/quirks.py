"""What some peers need beyond the draft, by their MOQT_IMPLEMENTATION (MOQT-22 9.1.5).

Each entry names what was seen, against which version, and what is done about it; nothing here
weakens a check. `interop/` shows each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.wire.options import SetupOptions

__all__ = ["closes_for_binary_names", "fetches_beside_subscription"]

MOQ_RS = "moq-lite-rs"
"""moq-rs 0.5.1 (moq-ffi 0.4.18)."""

MOQ_RS_FAMILY = ("moq-rs", "moq-lite", "moq-native")
"""How the names of all builds of moq-rs begin, the one above too."""


def fetches_beside_subscription(options: SetupOptions | None) -> bool:
    """Return whether the peer sends FETCH only while a subscription to the track is open.

    A moq-rs relay that is asked for a Group that it does not hold subscribes upstream first. When
    PUBLISH_DONE answers at once, as for a complete track, it gives up ("dropped").
    """
    return options is not None and options.implementation == MOQ_RS


def closes_for_binary_names(implementation: str | None) -> bool:
    """Return whether the peer closes the session for a namespace field that is not UTF-8.

    Fields are octets in the draft (MOQT-22 2.4.1); moq-rs holds them as text.
    """
    return implementation is not None and implementation.startswith(MOQ_RS_FAMILY)
