"""A worker's own part, and its channel, without a process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from kvcs.striping.channel import Channel
from kvcs.striping.messages import Cancel, Ended, Job, Settings
from kvcs.striping.shares import Striping
from kvcs.striping.worker import _Worker
from moqt.errors import NotSupported
from moqt.types import TrackNamespace
from tests.kvcs.support import describe, prompt


async def test_a_job_that_is_cancelled_before_it_began_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both messages may be read in one turn of a busy loop; its parent waits for the end."""
    told: list[Any] = []
    monkeypatch.setattr(Channel, "send", lambda _, message: told.append(message))
    ours, theirs = Channel.pair()
    descriptor = describe(layers=2)
    worker = _Worker(ours, Settings.__new__(Settings), parent=0)
    job = Job(
        number=7,
        descriptor=descriptor,
        tokens=prompt(descriptor, 2),
        extras=None,
        layers=range(2),
        blocks=2,
        striping=Striping(),
        publication=TrackNamespace((b"nobody",)),
        sources=(),
        recovery_deadline_s=None,
        places={},
        map_octets=(),
    )
    worker._taken(job, [])
    worker._taken(Cancel(7), [])
    await asyncio.gather(*worker._jobs.values(), return_exceptions=True)
    await asyncio.sleep(0)
    ours.close()
    theirs.close()
    (ended,) = told
    assert isinstance(ended, Ended)
    assert ended.number == 7
    assert "cancelled" in str(ended.error and ended.error.rebuilt())
    assert not worker._jobs


def test_a_platform_without_what_it_takes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "send_fds")
    with pytest.raises(NotSupported, match="POSIX"):
        Channel.pair()
