"""Fakes for testing what is built on a session: a scripted peer, and two sessions on one link."""

from moqt.testing.link import Link, LinkConditions, LinkEnd
from moqt.testing.pair import SessionPair
from moqt.testing.scripted import ScriptedPeer, ScriptedTransport

__all__ = [
    "Link",
    "LinkConditions",
    "LinkEnd",
    "ScriptedPeer",
    "ScriptedTransport",
    "SessionPair",
]
