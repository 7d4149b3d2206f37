"""The application's answers to a PUBLISH or PUBLISH_NAMESPACE of the peer's (MOQT-22 9.8, 9.14)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moqt.codes import RequestErrorCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.config import Role
from moqt.session.discover.namespaces import NamespaceOffer
from moqt.session.receive.subscribe_request import PublicationOffer
from moqt.wire.framing import encode_message
from moqt.wire.messages import Redirect, RequestError, RequestUpdate
from moqt.wire.params import NO_PARAMETERS
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.request.requests import Requests
    from moqt.types import FullTrackName
    from moqt.wire.params import Parameters

__all__ = ["Offers"]


class Offers:
    """Finds the offers of one session that wait for an answer, and answers them."""

    def __init__(self, context: SessionContext, requests: Requests, subscriber: Subscriber) -> None:
        self._context = context
        self._requests = requests
        self._subscriber = subscriber

    def _unanswered(self, request_id: int) -> NamespaceOffer | PublicationOffer:
        offer = self._context.handles.get(request_id)
        if not isinstance(offer, NamespaceOffer | PublicationOffer) or offer.is_answered:
            raise LocalProtocolError(f"request {request_id} is no offer that waits for an answer")
        return offer

    def accept(
        self, request_id: int, wanted: Parameters, *, sink: ObjectSink | None, now: float
    ) -> None:
        """Answer OK; what a PUBLISH does not say of `wanted` follows in a REQUEST_UPDATE."""
        offer = self._unanswered(request_id)
        if isinstance(offer, NamespaceOffer):
            offer.accept()
            return
        offered = offer.message.parameters
        if wanted.forward == (offered.forward is not False):
            wanted = replace(wanted, forward=None)
        priority = offered.subscriber_priority
        if wanted.subscriber_priority == (DEFAULT_PRIORITY if priority is None else priority):
            wanted = replace(wanted, subscriber_priority=None)
        self._subscriber.checked(offer.message.name, wanted)
        try:
            encode_message(RequestUpdate(0, wanted))  # before anything is said
        except ValueError as fault:
            raise LocalProtocolError(f"REQUEST_UPDATE: {fault}") from fault
        try:
            offer.accept(sink, now)
        except RemoteProtocolError as error:
            self._context.fatal(error.code, error.reason)
        if wanted != NO_PARAMETERS and offer.is_open:
            self._requests.update(request_id, wanted)

    def reject(
        self,
        request_id: int,
        code: RequestErrorCode,
        reason: str,
        *,
        retry_interval_ms: int | None,
        redirect_uri: str,
        redirect_name: FullTrackName | None,
    ) -> None:
        """Answer REQUEST_ERROR; LocalProtocolError for one that the draft forbids (9.4)."""
        offer = self._unanswered(request_id)
        if (redirect_name is not None) != (code is RequestErrorCode.REDIRECT):
            raise LocalProtocolError(f"redirect_name does not fit code {code.name}")
        if redirect_uri and self._context.role is Role.CLIENT:
            raise LocalProtocolError("a client sends no Connect URI (MOQT-22 9.4)")
        if redirect_name is not None and redirect_name.name and isinstance(offer, NamespaceOffer):
            raise LocalProtocolError("a redirect of a namespace has no Track Name (MOQT-22 9.4)")
        redirect = Redirect(redirect_uri, redirect_name) if redirect_name is not None else None
        error = RequestError(
            code=code, reason=reason, retry_interval_ms=retry_interval_ms, redirect=redirect
        )
        try:
            encode_message(error)
        except ValueError as fault:
            raise LocalProtocolError(f"REQUEST_ERROR: {fault}") from fault
        offer.reject(error)
