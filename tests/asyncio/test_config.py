"""What `TransportConfig` refuses, by name and before any connection."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.asyncio.config import CongestionControl, TransportConfig


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("congestion_control", "bbr", TypeError),
        ("congestion_control", None, TypeError),
        ("fast_path", "no", TypeError),
        ("qlog_dir", 3, TypeError),
        ("max_datagram_octets", 1199, ValueError),
        ("idle_timeout_s", 0, ValueError),
        ("keep_alive_s", -1, ValueError),
        ("max_stream_window_octets", 0, ValueError),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name if name != "qlog_dir" else None):
        TransportConfig(**{name: value})


@pytest.mark.parametrize(
    ("fast_path", "variable", "expected"),
    [(None, "1", True), (None, "0", False), (True, "0", True), (False, "1", False)],
)
def test_the_environment_decides_where_the_program_does_not(
    fast_path: bool | None, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOQT_FAST_PATH", variable)
    config = TransportConfig(fast_path=fast_path, congestion_control=CongestionControl.RENO)
    assert config.is_fast_path is expected
