"""Keeps what happened in a broker and why: rebalances, elections, refused requests, disks, slow requests.

An event is made where it happens, where the cause is known. A broker keeps the last ones of each kind in memory, so
that refused requests do not push out elections; equal ones within a minute are one with a count, and so are many
requests of a client with one error. Nothing of this is on
a path that a request passes without an error. Fields and kinds: docs/why.md. Design: docs/design/observability.md.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from ottla.core.clock import Clock

TEXT_CHARS_MAX: Final = 500
"""A longer text of a client is cut."""

_MERGED_MS: Final = 60_000
_SAMPLES: Final = 3
_CUT: Final = "..."


class EventKind(StrEnum):
    """The kinds of events."""

    REBALANCE = "rebalance"
    MEMBER_FENCED = "member-fenced"
    OFFSETS_EXPIRED = "offsets-expired"
    ISR_CHANGE = "isr-change"
    ELECTION = "election"
    CONTROLLER = "controller"
    STORE_SESSION = "store-session"
    REFUSED = "refused-request"
    REFUSED_CONNECTION = "refused-connection"
    THROTTLED = "throttled-request"
    SLOW_REQUEST = "slow-request"
    DISK = "disk"
    SLOW_FSYNC = "slow-fsync"
    COMPACTION = "compaction"
    LOCKS_EXPIRED = "share-locks-expired"
    DEAD_LETTER = "dead-letter"
    DROPPED = "dropped"


class Event(NamedTuple):
    """One event: what it concerns, and its cause in one sentence. What is empty or -1 is left out."""

    kind: EventKind
    cause: str
    topic: str = ""
    partition: int = -1
    group: str = ""
    client: str = ""
    node: int = -1  # the broker that it concerns, which is not always the one that reports it
    error: str = ""
    request: str = ""  # CONNECTION-CORRELATION, as in the log
    numbers: tuple[tuple[str, float], ...] = ()
    api: str = ""  # of a request

    def fields(self) -> dict[str, object]:
        """Return the fields that have a value, as in JSON."""
        fields: dict[str, object] = {"kind": self.kind.value, "cause": self.cause}
        for name in ("topic", "group", "client", "api", "error", "request"):
            if text := getattr(self, name):
                fields[name] = text
        fields |= {name: number for name in ("partition", "node") if (number := getattr(self, name)) >= 0}
        return {**fields, **({"numbers": dict(self.numbers)} if self.numbers else {})}


class RecordedEvent:
    """An event with its number, which only grows, its times, and how often it happened within them."""

    __slots__ = ("count", "event", "first_ms", "last_ms", "number")

    def __init__(self, number: int, event: Event, now_ms: int) -> None:
        self.number, self.event = number, event
        self.first_ms = self.last_ms = now_ms
        self.count = 1

    def fields(self, node_id: int) -> dict[str, object]:
        """Return what GET /events has of it."""
        fields = {"number": self.number, **_fields(self.event, self.first_ms, self.count, node_id)}
        return fields if self.count == 1 else {**fields, "last": time_text(self.last_ms)}


class _Kept:
    """The events of one kind in memory, and which of them stand for more that are alike.

    Of the requests of a client to an API with an error, no more than `_SAMPLES` are kept apart in a minute. When memory
    is full the oldest event of the API and error with the most of them leaves: however many requests fail, and whatever
    clients they name, others stay.
    """

    def __init__(self, events_max: int) -> None:
        self._events_max, self._size = events_max, 0
        self._kept: dict[tuple[str, str], OrderedDict[int, RecordedEvent]] = {}  # by API and error
        self._last: dict[Event, RecordedEvent] = {}
        self._samples: OrderedDict[tuple[str, str, str], list[RecordedEvent]] = OrderedDict()

    def alike(self, event: Event, now_ms: int) -> RecordedEvent | None:
        """Return the event of the last minute with which this one is counted."""
        same = self._last.get(event)
        if same is not None and 0 <= now_ms - same.last_ms <= _MERGED_MS:
            return same
        samples = self._samples.get((event.client, event.api, event.error)) if event.api else None
        if samples is None:
            return None
        samples[:] = [sample for sample in samples if 0 <= now_ms - sample.first_ms <= _MERGED_MS]
        return samples[-1] if len(samples) >= _SAMPLES else None

    def add(self, recorded: RecordedEvent) -> RecordedEvent | None:
        """Keep an event; return the one that had to leave for it."""
        event = recorded.event
        self._last[event] = recorded
        self._kept.setdefault((event.api, event.error), OrderedDict())[recorded.number] = recorded
        if event.api:
            self._samples.setdefault((event.client, event.api, event.error), []).append(recorded)
            if len(self._samples) > self._events_max:
                self._samples.popitem(last=False)
        self._size += 1
        if self._size <= self._events_max:
            return None
        where = max(self._kept, key=lambda key: len(self._kept[key]))
        _, gone = self._kept[where].popitem(last=False)
        if not self._kept[where]:
            del self._kept[where]
        self._size -= 1
        if self._last.get(gone.event) is gone:
            del self._last[gone.event]
        return gone

    def all(self) -> Iterator[RecordedEvent]:
        """Yield all events, in no order."""
        for kept in self._kept.values():
            yield from kept.values()


class EventOutput(Protocol):
    """Port: a place to which events are written besides memory."""

    def put(self, entry: Event, now_ms: int) -> None:
        """Have the event written soon; does not wait and does not raise."""
        ...

    async def close(self) -> None:
        """Write what waits, and end."""
        ...


class EventLog:
    """The events of one broker. `record` may be called in any thread; `post` passes a call to the loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        node_id: int,
        events_max: int,
        post: Callable[[Callable[[Event], None], Event], object] | None = None,
    ) -> None:
        self.node_id = node_id
        self.dropped: dict[EventKind, int] = {}  # that had to leave memory
        self.output: EventOutput | None = None
        self._clock, self._events_max = clock, events_max
        self._post, self._thread = post, threading.get_ident()
        self._kept: dict[EventKind, _Kept] = {}
        self._numbers = itertools.count(1)

    def record(
        self,
        kind: EventKind,
        cause: str,
        *,
        topic: str = "",
        partition: int = -1,
        group: str = "",
        client: str = "",
        node: int = -1,
        error: str = "",
        request: str = "",
        numbers: Mapping[str, float] | None = None,
        api: str = "",
    ) -> None:
        """Keep an event."""
        event = Event(
            kind,
            _cut(cause),
            _cut(topic),
            partition,
            _cut(group),
            _cut(client),
            node,
            error,
            request,
            tuple((numbers or {}).items()),
            api,
        )
        if self._post is not None and threading.get_ident() != self._thread:
            self._post(self._keep, event)
        else:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        now_ms = self._clock.wall_ms()
        kept = self._kept.get(event.kind)
        if kept is None:
            kept = self._kept[event.kind] = _Kept(self._events_max)
        same = kept.alike(event, now_ms)
        if same is not None:
            same.count += 1
            same.last_ms = now_ms
            event = same.event
        elif gone := kept.add(RecordedEvent(next(self._numbers), event, now_ms)):
            self.dropped[event.kind] = self.dropped.get(event.kind, 0) + gone.count
        if self.output is not None:
            self.output.put(event, now_ms)

    def read(
        self, *, kinds: Collection[str] = (), since_ms: int = 0, after: int = 0, limit: int = 1_000
    ) -> list[RecordedEvent]:
        """Return the newest events, the oldest first: of these kinds or all, that happened since a time."""
        chosen = [
            recorded
            for kind, kept in self._kept.items()
            if not kinds or kind in kinds
            for recorded in kept.all()
            if recorded.last_ms >= since_ms and recorded.number > after
        ]
        return sorted(chosen, key=lambda recorded: recorded.number)[-limit:]

    def json(self, *, kinds: Collection[str] = (), since_ms: int = 0, after: int = 0, limit: int = 1_000) -> str:
        """Return the body of GET /events."""
        events = self.read(kinds=kinds, since_ms=since_ms, after=after, limit=limit)
        return json.dumps(
            {
                "broker": self.node_id,
                "now": time_text(self._clock.wall_ms()),
                "dropped": {kind.value: count for kind, count in sorted(self.dropped.items())},
                "events": [recorded.fields(self.node_id) for recorded in events],
            }
        )

    async def close(self) -> None:
        """Write what waits."""
        if self.output is not None:
            await self.output.close()


def encode(event: Event, first_ms: int, count: int, node_id: int) -> bytes:
    """Encode an event as one line of JSON without its end."""
    return json.dumps(_fields(event, first_ms, count, node_id), separators=(",", ":")).encode()


def time_text(wall_ms: int) -> str:
    """Format a time as in JSON.

    >>> time_text(1500)
    '1970-01-01T00:00:01.500Z'
    """
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(event: Event, first_ms: int, count: int, node_id: int) -> dict[str, object]:
    fields = {"time": time_text(first_ms), "broker": node_id, **event.fields()}
    return {**fields, "count": count} if count > 1 or event.kind is EventKind.DROPPED else fields


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - len(_CUT)] + _CUT
