"""Events: bounded by kind, equal ones once, from any thread, as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from ottla.core.entry_queue import EntryQueue
from ottla.core.events import Event, EventKind, EventLog, encode


class _Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def _log(events_max: int = 3) -> tuple[EventLog, _Clock]:
    clock = _Clock()
    return EventLog(clock, node_id=1, events_max=events_max), clock


def test_many_events_of_one_kind_push_out_none_of_another() -> None:
    events, _ = _log()
    events.record(EventKind.ELECTION, "broker 2 leads", topic="t", partition=0)
    for number in range(5):
        events.record(EventKind.REFUSED, f"refused {number}")
    assert [each.event.cause for each in events.read(kinds=("refused-request",))] == [f"refused {n}" for n in (2, 3, 4)]
    assert len(events.read(kinds=("election",))) == 1
    assert events.dropped == {EventKind.REFUSED: 2}


def test_equal_events_within_a_minute_are_one_with_a_count() -> None:
    events, clock = _log()
    for _ in range(3):
        events.record(EventKind.DISK, "full")
        clock.ms += 10_000
    clock.ms += 60_000
    events.record(EventKind.DISK, "full")
    assert [(each.count, each.first_ms, each.last_ms) for each in events.read()] == [
        (3, 1_000, 21_000),
        (1, 91_000, 91_000),
    ]


def _refused(events: EventLog, client: str, cause: str, *, api: str = "Produce", error: str = "INVALID_RECORD") -> None:
    events.record(EventKind.REFUSED, cause, client=client, api=api, error=error)


def test_a_client_that_fails_a_thousand_times_has_three_events_a_minute_and_a_count() -> None:
    events, clock = _log(events_max=100)
    for number in range(1_000):
        _refused(events, "billing", f"record {number} is invalid")
    _refused(events, "shipping", "record 7 is invalid")
    assert [(each.event.client, each.count) for each in events.read()] == [
        ("billing", 1),
        ("billing", 1),
        ("billing", 998),
        ("shipping", 1),
    ]
    clock.ms += 61_000
    _refused(events, "billing", "record 1000 is invalid")
    assert events.read()[-1].count == 1


def test_a_flood_of_one_error_leaves_the_events_of_others_in_memory() -> None:
    events, _ = _log(events_max=10)
    _refused(events, "billing", "no such topic", api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION")
    for number in range(1_000):
        _refused(events, f"client-{number}", "invalid")
    kept = events.read()
    assert len(kept) == 10
    assert kept[0].event.client == "billing"
    assert events.dropped == {EventKind.REFUSED: 991}


def test_reading_goes_on_after_a_number_and_since_a_time() -> None:
    events, clock = _log()
    events.record(EventKind.DISK, "a")
    clock.ms += 5
    events.record(EventKind.REBALANCE, "b", group="g")
    assert [each.event.cause for each in events.read(after=1)] == ["b"]
    assert [each.event.cause for each in events.read(since_ms=1_005)] == ["b"]
    assert [each.event.cause for each in events.read(limit=1)] == ["b"]


def test_json_has_what_is_not_empty_and_cuts_long_texts() -> None:
    events, _ = _log()
    events.record(EventKind.SLOW_FSYNC, "x" * 900, client="c", numbers={"seconds": 1.5})
    body = json.loads(events.json())
    (event,) = body["events"]
    assert (body["broker"], body["now"], body["dropped"]) == (1, "1970-01-01T00:00:01.000Z", {})
    assert len(event.pop("cause")) == 500
    assert event == {
        "number": 1,
        "time": "1970-01-01T00:00:01.000Z",
        "broker": 1,
        "kind": "slow-fsync",
        "client": "c",
        "numbers": {"seconds": 1.5},
    }


def test_an_event_of_another_thread_is_passed_to_the_loop() -> None:
    posted: list[tuple[Callable[[Event], None], Event]] = []
    events = EventLog(_Clock(), node_id=1, events_max=10, post=lambda keep, event: posted.append((keep, event)))
    thread = threading.Thread(target=events.record, args=(EventKind.DISK, "failed"))
    thread.start()
    thread.join()
    assert not events.read()
    keep, event = posted[0]
    keep(event)
    assert [each.event.cause for each in events.read()] == ["failed"]


def test_events_that_cannot_be_written_are_counted_in_the_topic() -> None:
    queue = EntryQueue(encode, Event(EventKind.DROPPED, "more than could be written"), entries_max=1)
    for cause in ("a", "a", "b"):
        queue.put(Event(EventKind.DISK, cause), 1_000)
    lines, count = queue.take(1, 10)
    assert [(json.loads(line)["kind"], json.loads(line)["count"]) for line in lines] == [("dropped", 1), ("disk", 2)]
    assert count == 3
