"""One partition of the share coordinator: initialization, writes, fencing, snapshots and pruning."""

from __future__ import annotations

import uuid
from types import NoneType

from ottla.core.errors import ErrorCode
from ottla.share_coordinator.machine import ShareCoordinatorMachine, StateResult, StateWrite
from ottla.share_coordinator.records import SharePartitionKey, Snapshot, StateRecord, Update, decode, encode
from ottla.share_coordinator.states import RecordState, StateBatch

TOPIC = uuid.UUID(int=3)
KEY = SharePartitionKey("team", TOPIC, 0)
OTHER = SharePartitionKey("team", TOPIC, 1)
ACKNOWLEDGED = RecordState.ACKNOWLEDGED


def new_machine(interval: int = 500) -> ShareCoordinatorMachine:
    return ShareCoordinatorMachine(interval, lambda topic, partition: topic == TOPIC and partition < 2)


def applied(machine: ShareCoordinatorMachine, result: StateResult, offset: int = 0) -> StateResult:
    for record in result.records:
        machine.apply(record, offset)
    return result


def write(
    machine: ShareCoordinatorMachine, *batches: StateBatch, state: int = 0, leader: int = 0, start: int = -1
) -> StateResult:
    content = StateWrite(state, leader, start, -1, batches)
    return applied(machine, machine.write(KEY, content, now_wall_ms=50), 7)


def initialize(
    machine: ShareCoordinatorMachine, key: SharePartitionKey = KEY, state: int = 0, start: int = 0
) -> StateResult:
    return applied(machine, machine.initialize(key, state, start, now_wall_ms=10))


def read(machine: ShareCoordinatorMachine, leader: int) -> StateResult:
    return applied(machine, machine.read(KEY, leader, now_wall_ms=1))


def contents(result: StateResult) -> list[Snapshot | Update | None]:
    return [record.content for record in result.records]


def test_a_share_partition_must_be_initialized_first() -> None:
    machine = new_machine()
    assert write(machine).error is ErrorCode.INVALID_REQUEST
    assert read(machine, 0).error is ErrorCode.INVALID_REQUEST
    assert contents(initialize(machine, start=5)) == [Snapshot(0, 0, 0, 5, 0, 10, 10)]
    found = read(machine, 0)
    assert (found.error, found.state, found.records) == (ErrorCode.NONE, Snapshot(0, 0, 0, 5, 0, 10, 10), ())


def test_the_records_that_are_done_are_counted_from_a_given_start_on() -> None:
    machine = new_machine()
    (given,), (later,) = contents(initialize(machine, start=5)), contents(initialize(machine, start=-1))
    assert isinstance(given, Snapshot)
    assert isinstance(later, Snapshot)
    assert (given.delivery_complete_count, later.delivery_complete_count) == (0, -1)


def test_unknown_topics_and_negative_partitions_are_refused() -> None:
    machine = new_machine()
    for key, error in (
        (SharePartitionKey("team", uuid.UUID(int=9), 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (SharePartitionKey("team", TOPIC, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (SharePartitionKey("team", TOPIC, -1), ErrorCode.INVALID_REQUEST),
    ):
        assert initialize(machine, key).error is error
        assert machine.summary(key).error is error
        assert machine.delete(key).error is error


def test_a_change_is_an_update_and_every_so_many_a_snapshot() -> None:
    machine = new_machine(interval=2)
    initialize(machine)
    batches = [StateBatch(at, at, ACKNOWLEDGED, 1) for at in range(4)]
    kinds = [type(contents(write(machine, batch))[0]) for batch in batches]
    assert kinds == [Update, Update, Snapshot, Update]
    found = read(machine, 0).state
    assert found is not None
    assert (found.snapshot_epoch, found.batches) == (1, (StateBatch(0, 3, ACKNOWLEDGED, 1),))


def test_an_older_leader_is_fenced_by_the_read_of_a_newer_one() -> None:
    machine = new_machine()
    initialize(machine)
    assert len(read(machine, 3).records) == 1, "the epoch is persisted"
    assert write(machine, leader=2).error is ErrorCode.FENCED_LEADER_EPOCH
    assert read(machine, 2).error is ErrorCode.FENCED_LEADER_EPOCH
    assert write(machine, leader=3).error is ErrorCode.NONE


def test_a_new_state_epoch_resets_the_state_and_fences_older_writes() -> None:
    machine = new_machine()
    initialize(machine)
    write(machine, StateBatch(0, 9, ACKNOWLEDGED, 1))
    assert initialize(machine, state=1, start=100).error is ErrorCode.NONE
    assert write(machine, StateBatch(10, 19, ACKNOWLEDGED, 1)).error is ErrorCode.FENCED_STATE_EPOCH
    assert initialize(machine, state=0).error is ErrorCode.FENCED_STATE_EPOCH
    summary = machine.summary(KEY).state
    assert summary is not None
    assert (summary.start_offset, summary.batches) == (100, ())


def test_the_start_cuts_off_batches_before_it() -> None:
    machine = new_machine()
    initialize(machine)
    write(machine, StateBatch(0, 9, ACKNOWLEDGED, 1))
    write(machine, StateBatch(12, 14, ACKNOWLEDGED, 1), start=8)
    summary = machine.summary(KEY).state
    assert summary is not None
    assert summary.batches == (StateBatch(8, 9, ACKNOWLEDGED, 1), StateBatch(12, 14, ACKNOWLEDGED, 1))


def test_a_deleted_state_is_gone_also_after_loading() -> None:
    machine, loaded = new_machine(), new_machine()
    records = [*initialize(machine).records, *write(machine, StateBatch(0, 1, ACKNOWLEDGED, 1)).records]
    records += applied(machine, machine.delete(KEY)).records
    assert machine.delete(KEY).records == (), "a second deletion has nothing to do"
    for offset, record in enumerate(records):
        loaded.apply(decode(*encode(record)), offset)
    assert (len(machine), len(loaded)) == (0, 0)
    summary = loaded.summary(KEY).state
    assert summary is not None
    assert summary.start_offset == -1


def test_loading_gives_the_same_state() -> None:
    machine, loaded = new_machine(interval=3), new_machine(interval=3)
    records = list(initialize(machine).records)
    for at in range(10):
        records += write(machine, StateBatch(2 * at, 2 * at, ACKNOWLEDGED, 1), leader=at // 3, start=at).records
    for offset, record in enumerate(records):
        loaded.apply(decode(*encode(record)), offset)
    assert loaded.summary(KEY) == machine.summary(KEY)


def test_records_before_the_oldest_snapshot_are_redundant() -> None:
    machine = new_machine(interval=0)
    applied(machine, machine.initialize(KEY, 0, 0, now_wall_ms=10), 0)
    applied(machine, machine.initialize(OTHER, 0, 0, now_wall_ms=10), 1)
    write(machine)  # a snapshot at 7
    assert machine.first_needed_offset == 1
    cold = applied(machine, machine.maintain(not_since_wall_ms=10, now_wall_ms=90), 8)
    assert [record.key for record in cold.records] == [OTHER]
    assert machine.first_needed_offset == 7


def test_states_of_deleted_topics_are_deleted() -> None:
    partitions = {0, 1}
    machine = ShareCoordinatorMachine(5, lambda _topic, partition: partition in partitions)
    initialize(machine)
    initialize(machine, OTHER)
    partitions.discard(1)
    records = list(machine.maintain(not_since_wall_ms=0, now_wall_ms=90).records)
    assert records == [StateRecord(OTHER, None)]


def test_an_old_state_of_a_deleted_topic_is_deleted_and_not_written_again() -> None:
    partitions = {0, 1}
    machine = ShareCoordinatorMachine(5, lambda _topic, partition: partition in partitions)
    initialize(machine)
    initialize(machine, OTHER)
    write(machine)
    partitions.discard(1)
    maintained = applied(machine, machine.maintain(not_since_wall_ms=10, now_wall_ms=90))
    assert [(record.key, type(record.content)) for record in maintained.records] == [(OTHER, NoneType), (KEY, Snapshot)]
    assert list(machine) == [KEY]


def test_a_request_changes_nothing_before_its_records_are_applied() -> None:
    machine = new_machine()
    initialize(machine)
    before = machine.states()
    content = StateWrite(0, 3, 5, 1, (StateBatch(5, 9, ACKNOWLEDGED, 1),))
    machine.initialize(KEY, 1, 7, now_wall_ms=90)
    machine.write(KEY, content, now_wall_ms=90)
    machine.read(KEY, 9, now_wall_ms=90)
    machine.delete(KEY)
    machine.maintain(not_since_wall_ms=90, now_wall_ms=90)
    assert machine.states() == before
