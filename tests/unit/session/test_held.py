"""moqt.session.receive.held: what waits, and how little it costs."""

from __future__ import annotations

from moqt.session.receive.held import MAX_PIECES, HeldOctets


def content(held: HeldOctets) -> list[tuple[int, bytes, bool]]:
    return [(offset, bytes(data), fin) for offset, data, fin in held]


def test_what_continues_is_joined() -> None:
    held = HeldOctets()
    for offset in range(1000):
        assert held.add(offset, bytes([offset % 251]), offset == 999)
    assert content(held) == [(0, bytes(n % 251 for n in range(1000)), True)]
    assert held.octets == 1000


def test_gaps_stay_apart_and_in_order_of_arrival() -> None:
    held = HeldOctets()
    assert not held
    held.add(10, b"end", True)
    held.add(0, memoryview(b"start"), False)
    held.add(5, b"more.", False)
    assert content(held) == [(10, b"end", True), (0, b"startmore.", False)]
    assert held.octets == 13


def test_fin_behind_all_octets() -> None:
    held = HeldOctets()
    held.add(0, b"all", False)
    held.add(3, b"", True)
    assert content(held) == [(0, b"all", True)]


def test_too_many_pieces_are_refused() -> None:
    held = HeldOctets()
    assert all(held.add(2 * piece, b"x", False) for piece in range(MAX_PIECES))
    assert not held.add(2 * MAX_PIECES, b"x", False)
    assert held.add(2 * MAX_PIECES - 1, b"x", False)
    assert held.octets == MAX_PIECES + 1


def test_what_is_lent_is_held_uncopied_until_it_is_owned() -> None:
    held = HeldOctets()
    data = bytearray(b"head")
    held.lend(0, memoryview(data), False)
    assert held
    assert held.octets == 4
    ((offset, octets, fin),) = held
    assert (offset, octets.obj, fin) == (0, data, False)
    held.own()
    data[:] = b"gone"
    held.add(4, b"more", True)
    assert [(at, bytes(view), fin) for at, view, fin in held] == [(0, b"headmore", True)]
    assert held.octets == 8
