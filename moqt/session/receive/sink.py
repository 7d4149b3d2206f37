"""Where the application says in which memory an Object's payload goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from moqt.types import ObjectHeader

COMPARED_OCTETS: Final = 64
"""Of a payload in a place, the octets compared where the Object comes again: its first ones."""


class Placement(NamedTuple):
    """A place for one payload: `buffers` are filled in turn.

    Their lengths sum up to `payload_length` exactly; each is contiguous, writable octets. The
    session writes to them until the Object is reported or `ObjectSink.abandoned` is called, and
    never after that. `token` is the sink's own.

    Places of Objects that nobody wants may share memory behind their first `COMPARED_OCTETS`: these
    are read when the Object is whole, beside those of its other copies.
    """

    buffers: tuple[memoryview, ...]
    token: object = None


class ObjectSink(Protocol):
    """Given to a subscription or fetch. Its methods run inside the session's inputs.

    They do not call back into the session and do not raise.
    """

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        """Return the place for an Object that begins now; None: the session allocates it.

        It is asked for Objects with a payload only.
        """

    def abandoned(self, placement: Placement) -> None:
        """The place will not be completed and is not written any more.

        After a reset or cancel of the stream or the request, or the end of the session.
        """
