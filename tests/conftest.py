"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest

from moqt.asyncio.config import FAST_PATH_VARIABLE


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and so would be every program that a
    # test starts and then interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def packet_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which code writes and reads packets, in this process and in those that a test starts."""
    path: str = getattr(request, "param", "bulk")
    monkeypatch.setenv(FAST_PATH_VARIABLE, "1" if path == "bulk" else "0")
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Who needs a certificate opens connections: on the bulk path, and on aioquic's alone."""
    if "certificate" in metafunc.fixturenames:
        metafunc.parametrize("packet_path", ["bulk", "stock"], indirect=True)
