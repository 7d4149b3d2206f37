"""All cases against moq-rs."""

from interop.harness import our_client
from interop.harness.cases import Registry
from interop.moq_rs import cases_relay, cases_tracks

CASES = Registry.joined(cases_tracks.CASES, cases_relay.CASES, our_client.cases(cases_relay.relay))
