"""Makes requests as the driver hands them to handlers, for tests that call a handler without a socket."""

from __future__ import annotations

import random
import time
from typing import Any, cast

from ottla.broker.context import Services
from ottla.broker.delayed_operations import DelayedOperations
from ottla.broker.record_validation_queue import RecordValidationQueue
from ottla.broker.requests.elements import InParts, complete
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.broker.requests.request import Request
from ottla.broker.sessions.fetch_sessions import FetchSessions
from ottla.limits.budget import ByteBudget
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.net.malformed_requests import MalformedRequestLog
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import StillClock, open_directories


def _no_request(connection: ServerConnection, frame: memoryview, pending: PendingResponse) -> None:
    raise AssertionError("no request comes by this connection")


def connection_without_socket(*, host: str = "127.0.0.1", listener: str = "PLAINTEXT") -> ServerConnection:
    """Return a connection that sends nothing."""
    connection = ServerConnection(
        dispatch=_no_request,
        on_open=lambda _: True,
        on_close=lambda _: None,
        budget=ByteBudget(1 << 30),
        busy_poller=None,
        frame_bytes_max=1 << 20,
        now=time.monotonic,
        listener=listener,
        malformed=MalformedRequestLog(),
    )
    connection.host = host
    return connection


def bare_services(
    *, config: Any = None, cluster: Any = None, controller: Any = None, controller_channel: Any = None
) -> Services:
    """Return services of which a test has only those that it gives, and an empty simulated disk."""
    clock, absent = StillClock(), cast("Any", None)
    return Services(
        node_id=1,
        config=config,
        clock=clock,
        cluster=cluster,
        controller=controller,
        controller_channel=controller_channel,
        nodes=absent,
        replicas=Replicas(open_directories(SimDisk()), node_id=1, defaults=LogConfig(), clock=clock),
        coordinators=absent,
        producer_ids=absent,
        fetch_sessions=FetchSessions(slots=1, rng=random.Random(1)),
        record_validation=RecordValidationQueue(clock, absent),
        delayed_operations=DelayedOperations(),
    )


def request_to(
    services: Services, version: int, *, connection: ServerConnection | None = None, client_id: str = "test"
) -> Request:
    """Return a request of a version, on a connection of its own if none is given."""
    if connection is None:
        connection = connection_without_socket()
    request = Request(services, connection, PendingResponse(connection))
    request.api_version, request.client_id = version, client_id
    return request


async def answer_to(request: Request, module: str, body: Any) -> Any:
    """Return the response of the handler in a module of `broker/handlers/`, complete."""
    (row,) = (row for row in (*APIS.values(), *INTER_BROKER_APIS.values()) if row.module == module)
    api = row.load()
    answer = api.handle(request, body)
    if api.is_coroutine:
        answer = await answer
    return await request.services.slices.run(complete(request, answer)) if isinstance(answer, InParts) else answer
