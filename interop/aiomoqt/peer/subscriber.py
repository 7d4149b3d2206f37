"""aiomoqt as a subscriber.  subscriber.py URL NAMESPACE VERB [ARGUMENT ...]

A verb is a function below; what it returns is the result.
"""

import asyncio
import contextlib
import sys

from aiomoqt.messages.data import ObjectDatagram
from aiomoqt.messages.params import D20ParamType, LocationFilter, RangeFilter
from aiomoqt.types import GroupOrder, MOQTMessageType, MOQTRequestError, ParamType
from common import TRACK, client, fields, tell
from track_content import SIZE, Collected, CollectedDatagrams

WAIT_S = 10.0


def into(collected):
    """Return an Object handler that fills `collected`; status Objects have no payload."""

    def handle(message, *others):
        group_id = getattr(message, "group_id", None)
        group_id = others[2] if group_id is None else group_id
        if message.payload is not None and len(message.payload):
            collected.add(group_id, message.object_id, message.payload)

    return handle


class Subscription:
    """A SUBSCRIBE of the test track, until PUBLISH_DONE and so many Objects."""

    def __init__(self, session, namespace, size=SIZE, forward=1, **options):
        self.session = session
        self.live, self.fill = Collected(size), Collected(size)
        self.done = asyncio.Event()
        self.status = None
        self.message = session.subscribe(
            namespace,
            TRACK,
            forward=forward,
            on_object=into(self.live),
            on_done=self._end,
            **options,
        )
        session.register_fetch_object_handler(self.message.request_id, into(self.fill))

    def _end(self, message):
        self.status = int(message.status_code)
        self.done.set()

    async def accepted(self):
        """Wait for SUBSCRIBE_OK."""
        await self.session._await_response(self.message.request_id)
        print("SUBSCRIBED", flush=True)

    async def finished(self, objects, *, has_fill=False):
        """Wait for the end, and for what comes beside it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                if has_fill:
                    await self.session.await_fetch_done(self.message.request_id, WAIT_S)
                await self.done.wait()
                while len(self.live) + len(self.fill) < objects:
                    await asyncio.sleep(0.01)
        return {"live": self.live.summary, "fill": self.fill.summary, "status": self.status}


async def subscribe(session, namespace, objects, size=SIZE):
    """SUBSCRIBE all Locations."""
    subscription = Subscription(
        session, namespace, int(size), location_filter=LocationFilter.none()
    )
    await subscription.accepted()
    return await subscription.finished(int(objects))


def into_datagrams(collected):
    """Return an Object handler that fills `collected`, properties included.

    What came by FETCH says itself whether it is a datagram; status Objects have no payload.
    """

    def handle(message, *others):
        if message.payload is not None and len(message.payload):
            collected.take(
                message.group_id if hasattr(message, "group_id") else others[2],
                message.object_id,
                message.payload,
                message.extensions or {},
                is_datagram=getattr(message, "datagram", isinstance(message, ObjectDatagram)),
            )

    return handle


async def datagrams(session, namespace, objects):
    """SUBSCRIBE all Locations, whose Objects come in datagrams."""
    collected = CollectedDatagrams()
    message = session.subscribe(
        namespace,
        TRACK,
        on_object=into_datagrams(collected),
        location_filter=LocationFilter.none(),
    )
    await session._await_response(message.request_id)
    print("SUBSCRIBED", flush=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while len(collected) + len(collected.wrong) < int(objects):
                await asyncio.sleep(0.01)
    return collected.summary


async def fetch_datagrams(session, namespace, first, last):
    """FETCH whole Groups, whose Objects have Delivery Mode Datagram."""
    collected = CollectedDatagrams()
    reply = await session.fetch(
        namespace,
        TRACK,
        location_filter=LocationFilter.absolute(int(first), 0, int(last)),
        on_object=into_datagrams(collected),
        wait_response=True,
    )
    whole = await session.await_fetch_done(reply.request_id, WAIT_S)
    return {"objects": collected.summary, "whole": whole}


async def join(session, namespace, objects):
    """SUBSCRIBE from Next Object on, with a fill from {0,0}."""
    subscription = Subscription(
        session,
        namespace,
        location_filter=LocationFilter.next_object(),
        parameters={
            D20ParamType.FILL_PARAMETERS: {
                D20ParamType.LOCATION_FILTER: LocationFilter.absolute(0, 0)
            }
        },
    )
    await subscription.accepted()
    return await subscription.finished(int(objects), has_fill=True)


async def object_ids(session, namespace, first, last, objects):
    """SUBSCRIBE with an OBJECTID_FILTER."""
    subscription = Subscription(
        session,
        namespace,
        location_filter=LocationFilter.none(),
        parameters={D20ParamType.OBJECTID_FILTER: RangeFilter(ranges=((int(first), int(last)),))},
    )
    await subscription.accepted()
    return await subscription.finished(int(objects))


async def fetch(session, namespace, first, last):
    """FETCH whole Groups."""
    collected = Collected()
    reply = await session.fetch(
        namespace,
        TRACK,
        location_filter=LocationFilter.absolute(int(first), 0, int(last)),
        on_object=into(collected),
        wait_response=True,
    )
    whole = await session.await_fetch_done(reply.request_id, WAIT_S)
    return {"objects": collected.summary, "whole": whole}


async def fetch_descending(session, namespace, first, last):
    """FETCH whole Groups, the last one first; tell the Objects in the order in which they came."""
    came = []

    def handle(message, *others):
        if message.payload is not None and len(message.payload):
            came.append([message.group_id, message.object_id])

    reply = await session.fetch(
        namespace,
        TRACK,
        group_order=GroupOrder.DESCENDING,
        location_filter=LocationFilter.absolute(int(first), 0, int(last)),
        on_object=handle,
        wait_response=True,
    )
    await session.await_fetch_done(reply.request_id, WAIT_S)
    return came


async def resume(session, namespace, objects):
    """SUBSCRIBE with Forward State 0; when told, set it to 1 by REQUEST_UPDATE."""
    subscription = Subscription(
        session, namespace, forward=0, location_filter=LocationFilter.none()
    )
    await subscription.accepted()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await session.request_update(subscription.message.request_id, forward=1, wait_response=True)
    print("RESUMED", flush=True)
    return await subscription.finished(int(objects))


async def namespaces(session, prefix, count):
    """SUBSCRIBE_NAMESPACE."""
    await session.subscribe_namespace(prefix, wait_response=True)
    print("SUBSCRIBED", flush=True)
    found = []
    for _ in range(int(count)):
        message = await session.await_namespace(WAIT_S)
        found.append([field.hex() for field in message.namespace_suffix])
    return sorted(found)


async def tracks(session, prefix, count):
    """SUBSCRIBE_TRACKS."""
    await session.subscribe_tracks(prefix, wait_response=True)
    found = []
    for _ in range(int(count)):
        message = await session.await_publish(WAIT_S)
        fields = [field.hex() for field in message.track_namespace]
        found.append([fields, message.track_name.decode()])
    return sorted(found)


async def offered(session, namespace, objects):
    """Take what the publisher offers by PUBLISH."""
    offer = await session.await_publish(WAIT_S)
    collected, done = Collected(), asyncio.Event()
    session.register_object_handler(offer.track_alias, into(collected))
    session.register_publish_done_handler(offer.request_id, lambda _: done.set())
    session.publish_ok(request_msg=offer, forward=1, location_filter=LocationFilter.none())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            await done.wait()
            while len(collected) < int(objects):
                await asyncio.sleep(0.01)
    return {
        "namespace": [field.hex() for field in offer.track_namespace],
        "objects": collected.summary,
        "done": done.is_set(),
    }


async def status(session, namespace):
    """TRACK_STATUS."""
    reply = await session.track_status(namespace, TRACK, wait_response=True)
    largest = reply.parameters[ParamType.LARGEST_OBJECT]
    return [largest.group, largest.object] if hasattr(largest, "group") else list(largest)


async def goaway(session, namespace):
    """Wait for GOAWAY."""
    message = await asyncio.wait_for(session.goaways.get(), WAIT_S)
    return {"uri": message.new_session_uri, "timeout_ms": message.timeout}


async def main(url, namespace, verb, *arguments):
    """Connect and do it; a refusal is a result too."""
    endpoint = client(url)
    endpoint.goaways = asyncio.Queue()

    async def note(_, message):
        endpoint.goaways.put_nowait(message)

    endpoint.register_handler(MOQTMessageType.GOAWAY, note)
    async with endpoint.connect() as session:
        session.goaways = endpoint.goaways
        await session.client_session_init()
        print("CONNECTED", flush=True)
        try:
            tell(await globals()[verb](session, fields(namespace), *arguments))
        except MOQTRequestError as error:
            tell({"refused": int(error.error_code), "reason": error.reason})


asyncio.run(main(*sys.argv[1:]))
