"""Running the checks against a publisher on loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import moqt
from kvcs.conformance import Limits, collect, find
from kvcs.names import PROFILE, NamespaceForm
from moqt.types import TrackNamespace
from tests.kvcs.conformance.faulty import FaultyPublication
from tests.kvcs.stage import QUICK

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from kvcs.conformance import PublicationEvidence
    from kvcs.keys import TrustedKeys
    from moqt.tls import CertificatePair
    from tests.kvcs.conformance.faulty import Fault

LIMITS = Limits(listen_s=0.5, quiet_s=1.0, timeout_s=20.0)


async def observe(
    url: str,
    certificate: CertificatePair,
    *,
    trusted: TrustedKeys | None = None,
    limits: Limits = LIMITS,
    form: NamespaceForm = NamespaceForm.BINARY,
) -> list[PublicationEvidence]:
    """Find all publications there and collect evidence of each."""
    async with moqt.connect(url, ca=certificate.certificate, transport_config=QUICK) as session:
        return [
            await collect(session, namespace, form=form, trusted=trusted, limits=limits)
            for namespace in await find(session, TrackNamespace((PROFILE,)), limits)
        ]


async def observe_faulty(
    faults: AbstractSet[Fault], certificate: CertificatePair
) -> PublicationEvidence:
    """Serve a publication with these faults, and collect evidence while it is produced."""
    publication = FaultyPublication(faults)
    async with (
        moqt.serve(
            "127.0.0.1",
            0,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            directory=publication.directory,
            transport_config=QUICK,
        ) as server,
        asyncio.TaskGroup() as group,
    ):
        observing = group.create_task(observe(f"moqt://127.0.0.1:{server.port}/", certificate))
        group.create_task(publication.run())
        (evidence,) = await observing
    return evidence
