"""Receive windows by a virtual clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.asyncio.config import TransportConfig
from moqt.asyncio.connection import HeldConnection, quic_configuration
from moqt.asyncio.credit import LEAST_FIRST_WINDOW_OCTETS, SHORT_PATH_S
from moqt.asyncio.windows import ReceiveWindow
from tests.asyncio.quic_pair import QUICK, quic_pair

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

MEBI = 1 << 20


def consume(
    window: ReceiveWindow, *, rate: float, rtt: float, seconds: float, chunk: int = 16_384
) -> None:
    """Consume `rate` octets a second, but no more than the window lets through a round trip."""
    now = 0.0
    while now < seconds:
        now += chunk / min(rate, window.octets / rtt)
        if window.is_due(chunk):
            window.look(now, rtt)


def test_a_window_grows_to_twice_bandwidth_times_delay() -> None:
    """A session fills 1 Gbit/s at 100 ms from the default window of a stream."""
    window = ReceiveWindow(6 * MEBI, max_octets=64 * MEBI)
    rate, rtt = 125e6, 0.1
    consume(window, rate=rate, rtt=rtt, seconds=2)
    assert 2 * rate * rtt <= window.octets <= 4 * rate * rtt


def test_a_window_that_is_large_enough_stays() -> None:
    window = ReceiveWindow(6 * MEBI, max_octets=64 * MEBI)
    consume(window, rate=12.5e6, rtt=0.05, seconds=5)
    assert window.octets == 6 * MEBI


def test_a_window_ends_at_its_cap() -> None:
    window = ReceiveWindow(100_000, max_octets=1_000_000)
    consume(window, rate=1e9, rtt=0.5, seconds=20)
    assert window.octets == 1_000_000


def test_a_slow_reader_keeps_the_window_that_it_began_with() -> None:
    window = ReceiveWindow(100_000, max_octets=1_000_000)
    consume(window, rate=90_000, rtt=0.5, seconds=20, chunk=1000)
    assert window.octets == 100_000


@pytest.mark.parametrize(
    ("round_trip_s", "datagram_octets", "grows"),
    [
        (SHORT_PATH_S / 2, 1452, False),
        (SHORT_PATH_S * 2, 1452, True),
        (SHORT_PATH_S * 2, 65_000, False),
    ],
)
def test_on_a_short_path_all_may_wait_in_the_socket(
    round_trip_s: float, datagram_octets: int, grows: bool
) -> None:
    """Within a machine, which is what large datagrams tell, whatever a busy peer takes."""
    config = TransportConfig(connection_window_octets=1 << 20)
    connection = HeldConnection(
        configuration=quic_configuration(config, is_client=True), transport_config=config
    )
    connection._set_datagram_size(datagram_octets)
    connection._loss._rtt_min = connection._loss._rtt_smoothed = round_trip_s
    connection.begin_within(2 << 20)
    for _ in range(30):
        connection._credit_connection(1 << 19)
    window_octets = connection._connection_window.octets
    assert window_octets > 3 << 20 if grows else window_octets == 3 << 20


def test_a_pause_is_no_reason_to_grow() -> None:
    window = ReceiveWindow(100_000, max_octets=1_000_000)
    for now in range(10):
        assert window.is_due(100_000)
        assert not window.look(float(now), 0.5)


@given(
    initial=st.integers(1, 10_000),
    cap=st.integers(1, 100_000),
    steps=st.lists(st.tuples(st.integers(0, 20_000), st.floats(0, 2), st.floats(0, 1))),
)
def test_a_window_never_shrinks_and_never_exceeds_its_cap(
    initial: int, cap: int, steps: list[tuple[int, float, float]]
) -> None:
    cap = max(cap, initial)
    window = ReceiveWindow(initial, max_octets=cap)
    now = 0.0
    for octets, pause, rtt in steps:
        before = window.octets
        now += pause
        if window.is_due(octets):
            window.look(now, rtt)
        assert before <= window.octets <= min(cap, 2 * before)


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({}, LEAST_FIRST_WINDOW_OCTETS),
        ({"connection_window_octets": 500_000}, 500_000),
        ({"max_connection_window_octets": None}, 16 * MEBI),
    ],
)
async def test_the_first_window_is_what_a_socket_holds(
    certificate: CertificatePair, limits: dict[str, Any], first: int
) -> None:
    """Half of what the system grants, and no less than is good for a far peer."""
    config = dataclasses.replace(QUICK, socket_buffer_octets=100_000, **limits)
    async with quic_pair(certificate, server=config) as (near, _):
        assert near.driver.connection.peer_window_octets == first


def test_a_window_begins_within_a_socket_of_any_size() -> None:
    for octets, first in (
        (0, LEAST_FIRST_WINDOW_OCTETS),
        (3 * MEBI, 3 * MEBI),
        (1 << 30, 16 * MEBI),
    ):
        config = TransportConfig()
        connection = HeldConnection(
            configuration=quic_configuration(config, is_client=True), transport_config=config
        )
        connection.begin_within(octets)
        assert connection._local_max_data.value == connection._local_max_data.sent == first


def test_a_cap_is_positive_or_none() -> None:
    with pytest.raises(ValueError, match="max_connection_window_octets is 0, expected more than 0"):
        TransportConfig(max_connection_window_octets=0)
    with pytest.raises(ValueError, match="max_stream_window_octets is -1, expected more than 0"):
        TransportConfig(max_stream_window_octets=-1)
    config = TransportConfig(max_connection_window_octets=None, max_stream_window_octets=None)
    assert config.largest_connection_window_octets == config.connection_window_octets
    assert config.largest_stream_window_octets == config.stream_window_octets


def test_a_cap_below_the_window_is_no_cap_but_stops_the_growth() -> None:
    config = TransportConfig(connection_window_octets=100 * MEBI)
    assert config.largest_connection_window_octets == 100 * MEBI


@pytest.mark.parametrize(
    "name",
    [
        field.name
        for field in dataclasses.fields(TransportConfig)
        if type(field.default) in (int, float) or field.name.startswith("max_")
    ],
)
def test_no_limit_is_negative(name: str) -> None:
    limits: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"{name} is -1"):
        TransportConfig(**limits)
