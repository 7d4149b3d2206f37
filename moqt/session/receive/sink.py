"""Where the application says in which memory an Object's payload goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from moqt.types import ObjectHeader, Placement

COMPARED_OCTETS: Final = 64
"""Of a payload in a place, the octets compared where the Object comes again: its first ones."""


class ObjectSink(Protocol):
    """Given to a subscription or fetch. Its methods run inside the session's inputs.

    They do not call back into the session and do not raise. Places of Objects that nobody wants may
    share memory behind their first `COMPARED_OCTETS`: these are read when the Object is whole,
    beside those of its other copies.
    """

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        """Return the place for an Object that begins now; None: the session allocates it.

        It is asked for Objects with a payload only.
        """

    def abandoned(self, placement: Placement) -> None:
        """The place will not be completed and is not written any more.

        After a reset or cancel of the stream or the request, or the end of the session.
        """
