"""The test track that both ends know: which Objects it has, and every octet of them.

Only the standard library: the peers' scripts, under another Python, import it too.
"""

import hashlib

GROUPS = 5
OBJECTS = 8
SIZE = 16384
DATAGRAM_SIZE = 1000
"""That of an Object which travels in one datagram, its properties beside it."""

NUMBER, OCTETS = 1000, 1001
"""Types of the properties of such an Object: even ones are integers, odd ones octets."""


def payload(group_id: int, object_id: int, size: int = SIZE) -> bytes:
    """Return an Object's payload of `size` octets."""
    seed = hashlib.sha256(b"%d.%d" % (group_id, object_id)).digest()
    return (seed * (size // len(seed) + 1))[:size]


def properties(group_id: int, object_id: int) -> "dict[int, int | bytes]":
    """Return the properties, by type, of an Object that travels in a datagram."""
    return {NUMBER: group_id * OBJECTS + object_id, OCTETS: payload(group_id, object_id, 8)}


class Collected:
    """Objects as they came, compared octet by octet with what they must be."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.times: dict[tuple[int, int], int] = {}
        self.wrong: list[tuple[int, int]] = []

    def add(self, group_id: int, object_id: int, octets: "bytes | memoryview") -> None:
        """Take an Object."""
        if bytes(octets) == payload(group_id, object_id, self.size):
            self.times[group_id, object_id] = self.times.get((group_id, object_id), 0) + 1
        else:
            self.wrong.append((group_id, object_id))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def summary(self) -> dict[str, object]:
        """Tell it in JSON's terms: Objects a Group, those that came twice, those that are wrong."""
        groups: dict[str, list[int]] = {}
        for group_id, object_id in sorted(self.times):
            groups.setdefault(str(group_id), []).append(object_id)
        return {
            "groups": groups,
            "repeated": [list(key) for key, times in sorted(self.times.items()) if times > 1],
            "wrong": [list(key) for key in sorted(self.wrong)],
        }


class CollectedDatagrams(Collected):
    """The same of Objects in datagrams, whose properties are compared as well."""

    def __init__(self) -> None:
        super().__init__(DATAGRAM_SIZE)

    def take(
        self,
        group_id: int,
        object_id: int,
        octets: "bytes | memoryview",
        given: "dict[int, int | bytes]",
        *,
        is_datagram: bool,
    ) -> None:
        """Take an Object with its properties; it's wrong when its Delivery Mode isn't Datagram."""
        if is_datagram and given == properties(group_id, object_id):
            self.add(group_id, object_id, octets)
        else:
            self.wrong.append((group_id, object_id))


def whole(groups: range, objects: range = range(OBJECTS)) -> dict[str, object]:
    """Return the summary of having got just these, each once."""
    return {
        "groups": {str(group_id): list(objects) for group_id in groups},
        "repeated": [],
        "wrong": [],
    }
