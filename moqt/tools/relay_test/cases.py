"""The tests that need nothing but MOQT, in the order they are run."""

from __future__ import annotations

from moqt.tools.relay_test import delivery, standard
from moqt.tools.relay_test.case import Case

__all__ = ["CASES"]

CASES = (
    # The runner's own, with its time limits: of two connections it gives 3 s or a little more; of
    # one, 2 s after the request was sent, to which connecting is added here.
    Case("setup-only", 2.0, standard.setup_only),
    Case("announce-only", 4.0, standard.announce_only),
    Case("publish-namespace-done", 4.0, standard.publish_namespace_done),
    Case("subscribe-error", 2.0, standard.subscribe_error),
    Case("announce-subscribe", 3.0, standard.announce_subscribe),
    Case("subscribe-before-announce", 3.5, standard.subscribe_before_announce),
    # Ours.
    Case("fetch-range", 5.0, delivery.fetch_range),
    Case("fill-exactly-once", 5.0, delivery.fill_exactly_once),
    Case("namespace-discovery", 5.0, delivery.namespace_discovery),
    Case("objectid-filter", 5.0, delivery.objectid_filter),
)
