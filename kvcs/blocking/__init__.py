"""The verbs of `kvcs.Producer`, `kvcs.Consumer`, `kvcs.striping.StripedConsumer` for threads.

Engines call them from any thread. All objects of a process share one event loop thread. They close
at the end of their `with` block, or else at the interpreter's exit. After a fork the child makes
its own; using the parent's there raises BlockingError. Every wait takes an optional `timeout_s` and
raises TimeoutError when it is up; without one it is bounded by what the configuration says.
"""

from kvcs.assembly import UsableLayer
from kvcs.blocking.consumer import Consumer, Retrieval
from kvcs.blocking.producer import Producer, Publication, Segment
from kvcs.blocking.striped import StripedConsumer
from kvcs.loan import Loan
from kvcs.loop_thread import BlockingError

__all__ = [
    "BlockingError",
    "Consumer",
    "Loan",
    "Producer",
    "Publication",
    "Retrieval",
    "Segment",
    "StripedConsumer",
    "UsableLayer",
]
