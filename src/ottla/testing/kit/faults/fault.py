"""Declares faults: what a test has made go wrong, how often it has happened, and which requests it is about."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ottla.broker.requests.request import Request
from ottla.testing.kit.faults.elements import NO_PARTITION, TopicKey, newest_elements_of
from ottla.testing.kit.faults.names import api_named, name_of
from ottla.wire import codec
from ottla.wire.apis import ApiKey

log = logging.getLogger(__name__)

_BROKER_CLIENT_ID = re.compile(r"broker-(\d+)")


class Fault:
    """A fault that a test has made. `remove`, or the end of a `with`, ends it; so does `k.clear_faults()`.

    `count` is how often it has happened, `wait` returns when it has happened so often.
    """

    def __init__(self, what: str, *, count: int = 0, end: Callable[[Fault], None] | None = None) -> None:
        self.what = what
        self._count = count
        self._end = end
        self._changed = threading.Condition()
        self.failure: Exception | None = None  # that the test's own function has raised

    @property
    def count(self) -> int:
        """Return how often it has happened."""
        return self._count

    def __repr__(self) -> str:
        return f"<{self.what}: {self.count} times>"

    def happened(self) -> None:
        """Count once more."""
        log.info("fault: %s", self.what)
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, count: int = 1, *, timeout: float = 10) -> None:
        """Return when it has happened so often. Raises TimeoutError after so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count or self.failure is not None, timeout):
                raise TimeoutError(f"{self.what} has happened {self.count} times, not {count}")
        self._raise_failure()

    def fail(self, error: Exception) -> None:
        """Note what the test's own function has raised: `wait`, and the end of a `with`, raise it."""
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def remove(self) -> None:
        """End the fault; its count stays. A second call has no effect."""
        end, self._end = self._end, None
        if end is not None:
            end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()
        if error is None:
            self._raise_failure()


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as a fault's function gets it. `body` has the fields of Kafka's message in snake_case."""

    api: str
    version: int
    client_id: str | None
    broker: int
    body: Any


def view_of(request: Request, key: ApiKey, body: Any) -> RequestView:
    """Return the view of a request."""
    return RequestView(name_of(key), request.api_version, request.client_id, request.services.node_id, body)


def sender_of(request: Request) -> int | str:
    """Return who has sent a request: the node id of a broker, or the client id of a client."""
    client_id = request.client_id or ""
    match = _BROKER_CLIENT_ID.fullmatch(client_id)
    if match is not None and int(match[1]) in request.services.cluster.current.brokers:
        return int(match[1])
    return client_id


@dataclass(frozen=True, slots=True)
class Selection:
    """The requests that a fault hits. What is None is not looked at."""

    key: ApiKey | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    broker: int | None = None
    between_brokers: bool = False
    where: Callable[[RequestView], bool] | None = None

    def __str__(self) -> str:
        parts = [
            "requests" if self.key is None else name_of(self.key),
            *([f"of topic {self.topic}"] if self.topic is not None else []),
            *([f"partition {self.partition}"] if self.partition is not None else []),
            *([f"from {self.client_id}"] if self.client_id is not None else []),
            *([f"to broker {self.broker}"] if self.broker is not None else []),
        ]
        return " ".join(parts)

    def may_match(self, request: Request, key: ApiKey, sender: int | str) -> bool:
        """Return whether a request is one of these, as far as its header says."""
        return (
            self.key in (None, key)
            and self.client_id in (None, request.client_id)
            and self.broker in (None, request.services.node_id)
            and (self.between_brokers or isinstance(sender, str))
        )

    def is_of_connection(self, sender: int | str, broker: int) -> bool:
        """Return whether a connection of this client or broker is one of these."""
        if isinstance(sender, int) and not self.between_brokers:
            return False
        return self.client_id in (None, sender) and self.broker in (None, broker)

    @property
    def has_elements(self) -> bool:
        """Return whether the fault is about some elements of a request."""
        return self.topic is not None or self.partition is not None

    def selects(self, request: Request, topic: TopicKey, partition: int) -> bool:
        """Return whether the fault hits this partition of this topic."""
        if self.partition is not None and partition not in (self.partition, NO_PARTITION):
            return False
        if self.topic is None or self.topic == topic.name:
            return True
        known = request.services.cluster.current.topics.get(self.topic)
        return known is not None and topic.topic_id is not None and known.topic_id == topic.topic_id


def selection_of(
    api: str | None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    client_id: str | None = None,
    broker: int | None = None,
    between_brokers: bool = False,
    where: Callable[[RequestView], bool] | None = None,
) -> Selection:
    """Check what a test asks for. Raises ValueError for what cannot be."""
    key = None if api is None else api_named(api)
    if topic is not None or partition is not None:
        elements = None if key is None else newest_elements_of(key)
        if key is None:
            raise ValueError("a topic or a partition needs an API: api='Produce'")
        if elements is None or not elements.level.has_topics:
            raise ValueError(f"the responses of {name_of(key)} have no errors about single topics")
        if partition is not None and not elements.level.has_partitions:
            raise ValueError(f"the responses of {name_of(key)} have no errors about single partitions")
    return Selection(key, topic, partition, client_id, broker, between_brokers, where)


def decode_body(request: Request, key: ApiKey, frame: bytearray) -> Any:
    """Return the decoded body of a request."""
    return codec.decode_request(key, request.api_version, frame, request.header[4])
