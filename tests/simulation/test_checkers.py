"""Tries each checker on a good history and on histories with one wrong thing in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ottla.core.ids import TopicPartition
from tests.simulation import checkers
from tests.simulation.history import (
    Batch,
    Change,
    Commit,
    History,
    Outcome,
    Owner,
    ReplicaLog,
    Seen,
    Send,
    Start,
    StoreWrite,
    Use,
    Value,
)

WEB = TopicPartition("web", 0)
STATE = "/brokers/topics/web/partitions/0/state"
FIRST, SECOND, ABORTED = Value("p1", 1, 1), Value("p1", 2, 1), Value("p1", 3, 2)


def good() -> History:
    """Two committed records, one aborted one, read by a consumer, on two replicas."""
    batches = [Batch(0, 0, 1, b"first"), Batch(1, 1, 2, b"second"), Batch(2, 2, 2, b"third")]
    return History(
        sends=[
            Send(WEB, FIRST, 1.0, 1.5, Outcome.OK, 0),
            Send(WEB, SECOND, 1.6, 2.0, Outcome.OK, 1),
            Send(WEB, ABORTED, 2.1, 2.5, Outcome.OK, 2),
            Send(WEB, Value("p2", 1), 1.0, 9.0, Outcome.UNKNOWN),
            Send(WEB, Value("p2", 2), 1.0, 9.0, Outcome.FAILED),
        ],
        transactions=[
            Commit("p1", 1, None, 2.0, 2.1, Outcome.OK),
            Commit("p1", 2, None, 3.0, 3.1, Outcome.OK, is_abort=True),
        ],
        commits=[Commit("g", 1, WEB, 3.0, 3.1, Outcome.OK), Commit("g", 2, WEB, 3.2, 9.0, Outcome.UNKNOWN)],
        seen=[
            Seen(1.6, "c1", WEB, 0, FIRST, read_committed=False),
            Seen(2.6, "c1", WEB, 1, SECOND, read_committed=False),
            Seen(2.7, "c2", WEB, 1, SECOND, read_committed=True),
        ],
        owners=[Owner(1.0, "g", 1, "m1", WEB), Owner(2.0, "g", 2, "m2", WEB)],
        leaders=[(WEB, 1, 1), (WEB, 2, 2), (WEB, 1, 1)],
        store_writes=[
            StoreWrite(0.5, 1, 1, True, ()),
            StoreWrite(0.6, 1, 1, False, (STATE,)),
            StoreWrite(4.0, 2, 2, True, ()),
            StoreWrite(4.1, 2, 2, False, (STATE,)),
        ],
        changes=[Change(1.0, "alice", 1), Change(3.0, "alice", 0)],
        uses=[Use(2.0, 2.1, 1, "alice", 1, is_allowed=True), Use(12.9, 13.0, 1, "alice", 1, is_allowed=True)],
        age_s=10.0,
        final={WEB: [(0, FIRST), (1, SECOND), (2, ABORTED)]},
        final_committed={WEB: [(0, FIRST), (1, SECOND)]},
        final_commits={("g", WEB): 2},
        replicas=[ReplicaLog(1, WEB, 0, 3, batches), ReplicaLog(2, WEB, 0, 2, batches[:2])],
    )


def test_a_good_history_has_no_violation() -> None:
    assert checkers.violations(good()) == []


def _final(*records: tuple[int, Value]) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.final = {WEB: list(records)}

    return change


def _send(number: int, **changes: object) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.sends[number] = replace(history.sends[number], **changes)  # type: ignore[arg-type]

    return change


def _replica(batches: list[Batch], high_watermark: int = 2) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.replicas[1] = ReplicaLog(2, WEB, 0, high_watermark, batches)

    return change


BAD: dict[str, list[Callable[[History], None]]] = {
    "lost": [_final((0, FIRST), (2, ABORTED)), _final((0, FIRST), (1, ABORTED), (2, SECOND)), _final()],
    "moved_start": [
        lambda history: history.starts.append(Start(2.2, 1, WEB, 1)),
        lambda history: history.replicas.append(ReplicaLog(3, WEB, 1, 2, [Batch(1, 1, 2, b"second")])),
    ],
    "duplicated": [_final((0, FIRST), (1, SECOND), (2, ABORTED), (3, SECOND))],
    "refused": [_final((0, FIRST), (1, SECOND), (2, ABORTED), (3, Value("p2", 2)))],
    "invented": [_final((0, FIRST), (1, SECOND), (2, ABORTED), (3, Value("p9", 1)))],
    "reordered": [_final((0, SECOND), (1, FIRST), (2, ABORTED)), _final((0, FIRST), (1, SECOND), (1, ABORTED))],
    "real_time": [_send(1, offset=0)],
    "changed": [
        lambda history: history.seen.append(Seen(0.5, "c9", WEB, 1, ABORTED, read_committed=False)),
        lambda history: history.seen.extend(
            Seen(0.5, "c9", WEB, 7, value, read_committed=False) for value in (FIRST, SECOND)
        ),
    ],
    "skipped": [
        lambda history: history.seen.extend(
            Seen(3.0, "c3", WEB, at, value, read_committed=False) for at, value in ((0, FIRST), (2, ABORTED))
        ),
        lambda history: history.seen.append(history.seen[1]),
    ],
    "divergent": [
        _replica([Batch(0, 0, 1, b"first"), Batch(1, 1, 2, b"other")]),
        _replica([Batch(0, 0, 2, b"first"), Batch(1, 1, 1, b"second")]),
        _replica([Batch(0, 0, 1, b"first")]),
        _replica([Batch(0, 1, 1, b"first"), Batch(1, 1, 2, b"second")]),
    ],
    "foreign_write": [
        lambda history: history.store_writes.append(StoreWrite(5.0, 1, 1, False, (STATE,))),
        lambda history: history.store_writes.append(StoreWrite(5.0, 2, 3, False, (STATE,))),
        lambda history: history.store_writes.remove(history.store_writes[2]),
    ],
    "two_leaders": [lambda history: history.leaders.append((WEB, 2, 1))],
    "aborted": [
        lambda history: history.seen.append(Seen(3.0, "c2", WEB, 2, ABORTED, read_committed=True)),
        lambda history: history.final_committed[WEB].append((2, ABORTED)),
        lambda history: history.final_committed.update({WEB: [(0, FIRST)]}),
    ],
    "double_owner": [lambda history: history.owners.append(Owner(1.5, "g", 1, "m2", WEB))],
    "lost_commit": [
        lambda history: history.final_commits.update({("g", WEB): 0}),
        lambda history: history.final_commits.clear(),
    ],
    "stale_access": [
        lambda history: history.uses.append(Use(13.1, 13.2, 1, "alice", 1, is_allowed=True)),
        lambda history: history.uses.append(Use(0.5, 0.9, 1, "alice", 1, is_allowed=True)),
        lambda history: history.uses.append(Use(2.0, 2.1, 1, "bob", 1, is_allowed=True)),
    ],
    "problems": [lambda history: history.problems.append("a task failed")],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, at) for name, changes in BAD.items() for at in range(len(changes))]
)
def test_each_checker_finds_what_is_wrong(name: str, number: int) -> None:
    history = good()
    BAD[name][number](history)
    found = {line.partition(":")[0] for line in checkers.violations(history)}
    assert name in found


def test_every_checker_is_tried() -> None:
    assert set(BAD) == {checker.__name__ for checker in checkers.CHECKERS}


def test_a_transaction_that_is_torn_is_found_without_knowing_its_outcome() -> None:
    history = good()
    history.transactions[0] = replace(history.transactions[0], outcome=Outcome.UNKNOWN)
    history.final_committed = {WEB: [(0, FIRST)]}
    assert [line.partition(":")[0] for line in checkers.violations(history)] == ["aborted"]
