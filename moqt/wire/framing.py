"""Control messages on a stream: Type, 16-bit Length, Body (MOQT-22 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.wire import messages as m
from moqt.wire.cursor import NeedMore, OpenReader, Reader, Writer, malformed

if TYPE_CHECKING:
    from moqt.wire.messages import Message

__all__ = [
    "MAX_BODY_OCTETS",
    "MAX_MESSAGE_OCTETS",
    "MESSAGES",
    "MessageReader",
    "decode_body",
    "encode_message",
]

MAX_BODY_OCTETS = 0xFFFF
"""The longest body; nothing is fragmented."""

MAX_MESSAGE_OCTETS = 9 + 2 + MAX_BODY_OCTETS
"""The longest message, and the most that a `MessageReader` holds of an unfinished one."""

MESSAGES: dict[int, type[Message]] = {
    one.TYPE: one
    for one in (
        m.Setup,
        m.Goaway,
        m.Subscribe,
        m.SubscribeOk,
        m.RequestError,
        m.RequestUpdate,
        m.RequestOk,
        m.PublishDone,
        m.PublishStateNotify,
        m.Publish,
        m.Fetch,
        m.FetchOk,
        m.TrackStatus,
        m.PublishNamespace,
        m.SubscribeNamespace,
        m.Namespace,
        m.NamespaceDone,
        m.SubscribeTracks,
        m.PublishSkipped,
    )
}
"""The class of each message type."""


def encode_message(message: Message) -> bytes:
    """Return a whole message; ValueError when a value of it cannot be written."""
    body = Writer()
    message.write(body)
    if len(body) > MAX_BODY_OCTETS:
        raise ValueError(f"{message.TYPE.name} has {len(body)} octets, at most {MAX_BODY_OCTETS}")
    out = Writer()
    out.vi64(message.TYPE)
    out.uint16(len(body), "Length")
    out.octets(bytes(body))
    return bytes(out)


def decode_body(kind: int, body: memoryview | bytes | bytearray) -> Message:
    """Return the message of type `kind` with this body, used up exactly, else RemoteProtocolError.

    Nothing of the result refers to `body`.
    """
    message_class = MESSAGES.get(kind)
    if message_class is None:
        raise malformed(f"unknown message type 0x{kind:x}")
    reader = Reader(body, message_class.TYPE.name)
    message = message_class.read(reader)
    reader.expect_end()
    return message


class MessageReader:
    """Cuts one stream into messages. Feed it the stream's octets in order.

    Holds at most `MAX_MESSAGE_OCTETS` of an unfinished message. After an error it is of no use.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def octets_pending(self) -> int:
        """The octets held of an unfinished message."""
        return len(self._held)

    def feed(self, data: memoryview | bytes | bytearray) -> list[Message]:
        """Return the messages that `data` completes.

        Raises: RemoteProtocolError for the first message that breaks the draft, also when sound
        ones stand before it: the session ends anyway.
        """
        self._held += data
        found: list[Message] = []
        at = 0
        with memoryview(self._held) as held:
            while at < len(held):
                step = self._next(held[at:], found)
                if not step:
                    break
                at += step
        del self._held[:at]
        return found

    @staticmethod
    def _next(held: memoryview, found: list[Message]) -> int:
        """Add the first message to `found`; return its length, 0 when it is not whole."""
        reader = OpenReader(held, "control message")
        try:
            kind = reader.vi64("Message Type")
            if kind not in MESSAGES:
                raise malformed(f"unknown message type 0x{kind:x}")
            length = reader.uint16("Length")
        except NeedMore:
            return 0
        start = reader.position
        if length > reader.remaining:
            return 0
        found.append(decode_body(kind, held[start : start + length]))
        return start + length

    def finish(self) -> None:
        """Take the stream's FIN; RemoteProtocolError when it cuts a message (MOQT-22 6.4.2.2)."""
        if self._held:
            raise malformed(f"FIN inside a control message, after {len(self._held)} octets of it")
