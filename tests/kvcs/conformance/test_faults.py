"""Ten planted faults: each makes its own check fail and no other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvcs.conformance import CHECKS, Verdict, judge
from tests.kvcs.conformance.faulty import Fault
from tests.kvcs.conformance.observing import observe_faulty

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

NOT_SEEN = {
    "manifest-signature",  # not signed
    "encodings-agree",  # each tensor in one track
}


def test_each_fault_has_a_check_of_its_own() -> None:
    ids = {check.id for check in CHECKS}
    assert len(ids) == len(CHECKS)
    assert len({fault.value for fault in Fault}) == 10
    assert {fault.value for fault in Fault} <= ids


async def test_without_a_fault_all_that_applies_passes(certificate: CertificatePair) -> None:
    async with asyncio.timeout(60):
        report = judge(await observe_faulty(frozenset(), certificate))
    assert report.cut == ""
    assert report.failed() == ()
    assert set(report.ids(Verdict.NOT_APPLICABLE)) == NOT_SEEN


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
async def test_a_fault_fails_its_check_alone(certificate: CertificatePair, fault: Fault) -> None:
    async with asyncio.timeout(60):
        report = judge(await observe_faulty({fault}, certificate))
    assert report.cut == ""
    assert report.failed() == (fault.value,)


async def test_all_faults_together_fail_exactly_their_checks(certificate: CertificatePair) -> None:
    async with asyncio.timeout(60):
        report = judge(await observe_faulty(frozenset(Fault), certificate))
    assert report.cut == ""
    assert sorted(report.failed()) == sorted(fault.value for fault in Fault)
