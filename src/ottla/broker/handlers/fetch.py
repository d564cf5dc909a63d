"""Fetch (key 1), versions 4 to 18.

What it does
  Finds, for each partition, the region of a file that begins with the batch that holds the offset asked for, up to the
  high watermark or (read_committed) the last stable offset. Waits for `min_bytes` up to `max_wait_ms`; each move of a
  high watermark has its partition read again. At least one whole batch is sent even above the size limits (KIP-74).

  Followers fetch up to the log end, in sessions of their own (broker/sessions/replica_sessions.py). A consumer may read
  from a follower, up to the high watermark that it knows; with `replica.selector.class` the leader directs a consumer
  to an in-sync replica in its rack (KIP-392).

What it does not do
  Replica selectors of the operator's own: there is no plug-in for one.

Versions
  v5   log_start_offset
  v7   sessions (KIP-227)
  v9   current_leader_epoch fences (KIP-320)
  v11  rack
  v12  flexible encoding; last_fetched_epoch and diverging_epoch (KIP-595)
  v13  topics by id
  v15  replica state; v16 the leader and its endpoint, where it is another (KIP-951)
  v17  replica directory ids; v18 high watermark of the follower

Step 8 of 9 on the path of a batch (ARCHITECTURE.md). Next: broker/fetch/delayed_fetch.py.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from ottla.broker.fetch.delayed_fetch import READ, DelayedFetch
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.handler import Deferred
from ottla.broker.requests.request import Request
from ottla.broker.sessions.fetch_sessions import INITIAL_EPOCH, NO_SESSION, FetchSession
from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.core.runtime import new_random
from ottla.net.connection import PendingResponse
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import (
    FIRST_WITH_TOPIC_IDS,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_response,
    read_topics,
)
from ottla.wire.hot.reading import AT_ONCE, SHORT_ELEMENTS_MAX

CLUSTER_ACTION: Final = Access(
    AclOperation.CLUSTER_ACTION,
    ResourceType.CLUSTER,
    "the cluster, for a replica's fetch",
    refusal="`TOPIC_AUTHORIZATION_FAILED` for each partition",
)

decode = decode_fetch_request


def handle(
    ctx: Request, request: FetchRequest, response: PendingResponse
) -> Coroutine[Any, Any, Coroutine[Any, Any, None] | None] | None:
    """Respond at once if there is enough, an error, or no time to wait; otherwise wait.

    Returns what is left to be run as a task if the session has many partitions.
    """
    services, version = ctx.services, ctx.api_version
    is_replica = request.replica_id >= 0 or request.replica_state.replica_id >= 0
    if is_replica and (ctx.authorizer is None or not CLUSTER_ACTION.denies(ctx, CLUSTER_NAME)):  # CVE-2018-1288
        _serve_replica(ctx, request, response)
        return None
    try:
        session, wanted = services.fetch_sessions.resolve(
            request, ctx.identity, by_id=version >= FIRST_WITH_TOPIC_IDS, now=services.clock.monotonic()
        )
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return None
    if ctx.cost is not None:
        ctx.cost.limit_fetch(request)
    fetch = DelayedFetch(services, version, ctx.listener, request, session, wanted, response)
    if len(wanted) > SHORT_ELEMENTS_MAX:
        return fetch.serve_in_slices(ctx, is_denied=is_replica)
    if ctx.authorizer is not None:
        fetch.authorize(ctx, is_denied=is_replica)
    fetch.read_all()
    if fetch.must_respond or request.max_wait_ms <= 0 or services.delayed_operations.is_stopping:
        fetch.complete()
    else:
        fetch.watch()
        fetch.wait()
    return None


async def handle_long(
    ctx: Request, frame: bytes, at: int, response: PendingResponse
) -> Coroutine[Any, Any, None] | None:
    """Serve a request of many partitions as `handle` does, some of them at a time.

    Returns what is left to do if the request has to wait.
    """
    services, version, body = ctx.services, ctx.api_version, memoryview(frame)
    slices = services.slices
    request = decode_fetch_request(body, version, at, is_long=True)
    while not read_topics(body, version, request, AT_ONCE):
        if slices.spend(AT_ONCE):
            await slices.yield_to_loop()
    is_replica = request.replica_id >= 0 or request.replica_state.replica_id >= 0
    if is_replica and (ctx.authorizer is None or not CLUSTER_ACTION.denies(ctx, CLUSTER_NAME)):
        _serve_replica(ctx, request, response)
        return None
    now = services.clock.monotonic()
    try:
        session = services.fetch_sessions.find(request, ctx.identity, by_id=version >= FIRST_WITH_TOPIC_IDS, now=now)
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return None
    partitions = session if session is not None else FetchSession(NO_SESSION, ctx.identity, by_id=False, now=now)
    for topic in request.topics:  # the session may be changed or used meanwhile
        partitions.apply((topic,), ())
        if slices.spend(1 + len(topic.partitions)):
            await slices.yield_to_loop()
    for forgotten in request.forgotten_topics_data:
        partitions.apply((), (forgotten,))
        if slices.spend(1 + len(forgotten.partitions)):
            await slices.yield_to_loop()
    wanted = partitions.partitions.values()
    if ctx.cost is not None:
        ctx.cost.limit_fetch(request)
    fetch = DelayedFetch(services, version, ctx.listener, request, session, wanted, response)
    return await fetch.serve_in_slices(ctx, is_denied=is_replica)


def _serve_replica(ctx: Request, request: FetchRequest, response: PendingResponse) -> None:
    """Serve a follower's fetch."""
    from ottla.broker.fetch.replica_fetch import ReplicaFetch
    from ottla.broker.sessions.replica_sessions import ReplicaSessions

    services, version = ctx.services, ctx.api_version
    sessions = services.replica_sessions
    if sessions is None:
        sessions = services.replica_sessions = ReplicaSessions(new_random())
    try:
        session = sessions.resolve(request, by_id=version >= FIRST_WITH_TOPIC_IDS, connection_id=ctx.connection_id)
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return
    if session.epoch == INITIAL_EPOCH:
        ctx.call_when_lost("replica session", partial(sessions.remove_those_of, ctx.connection_id))
    ReplicaFetch(services, version, request, session, response).begin()


HANDLER = Deferred(ApiKey.FETCH, decode=decode, handle=handle, handle_long=handle_long, access=(READ, CLUSTER_ACTION))
