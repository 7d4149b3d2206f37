"""All cases against aiomoqt."""

from interop.aiomoqt import cases_client, cases_datagrams, cases_relay, cases_requests, cases_tracks
from interop.harness import our_client
from interop.harness.cases import Registry

CASES = Registry.joined(
    cases_tracks.CASES,
    cases_datagrams.CASES,
    cases_requests.CASES,
    cases_relay.CASES,
    cases_client.CASES,
    our_client.cases(cases_relay.relay),
)
