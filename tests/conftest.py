"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and so would be every program that a
    # test starts and then interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
