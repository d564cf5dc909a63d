"""The records of `__share_group_state`: Kafka's formats byte for byte."""

from __future__ import annotations

import uuid

import pytest

from ottla.share_coordinator.records import (
    MalformedStateRecord,
    SharePartitionKey,
    Snapshot,
    StateRecord,
    Update,
    decode,
    encode,
)
from ottla.share_coordinator.state_batches import combine
from ottla.share_coordinator.states import RecordState, StateBatch

KEY = SharePartitionKey("g", uuid.UUID(int=1), 2)
BATCH = StateBatch(5, 9, RecordState.ACKNOWLEDGED, 3)
KEY_TAIL = "000167" + "00" * 15 + "01" + "00000002"
BATCH_HEX = "0000000000000005" + "0000000000000009" + "02" + "0003" + "00"


def test_a_snapshot_has_kafkas_bytes_and_is_decoded() -> None:
    snapshot = Snapshot(1, 2, 3, 4, 5, 6, 7, (BATCH,))
    key, value = encode(StateRecord(KEY, snapshot))
    assert key.hex() == "0000" + KEY_TAIL
    assert value is not None
    head = "0000" + "00000001" + "00000002" + "00000003" + "0000000000000004" + "0000000000000006" + "0000000000000007"
    assert value.hex() == head + "02" + BATCH_HEX + "01" + "00" + "04" + "00000005"
    assert decode(key, value) == (KEY, snapshot)


def test_an_update_without_a_count_has_kafkas_bytes_and_is_decoded() -> None:
    update = Update(1, 3, -1, batches=(BATCH,))
    key, value = encode(StateRecord(KEY, update))
    assert key.hex() == "0001" + KEY_TAIL
    assert value is not None
    assert value.hex() == "0000" + "00000001" + "00000003" + "ffffffffffffffff" + "02" + BATCH_HEX + "00"
    assert decode(key, value) == (KEY, update)


def test_a_tombstone_is_decoded_as_no_state() -> None:
    key, value = encode(StateRecord(KEY, None))
    assert decode(key, value) == (KEY, None)


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_cut_records_are_malformed(cut: int) -> None:
    key, value = encode(StateRecord(KEY, Snapshot(1, 2, 3, 4, 5, 6, 7, (BATCH, BATCH))))
    assert value is not None
    with pytest.raises(MalformedStateRecord):
        decode(key, value[:-cut])
    with pytest.raises(MalformedStateRecord):
        decode(key[: len(key) - cut % len(key) - 1], value)


def test_the_coordinator_of_a_share_partition_is_chosen_by_its_text() -> None:
    assert KEY.text == "g:AAAAAAAAAAAAAAAAAAAAAQ:2"


def test_overlapping_batches_keep_the_later_delivery() -> None:
    available, acknowledged, archived = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
    older = [StateBatch(0, 9, available, 1), StateBatch(10, 19, available, 2)]
    newer = [StateBatch(5, 14, acknowledged, 2), StateBatch(18, 25, archived, 1)]
    assert combine(older, newer, 3) == (
        StateBatch(3, 4, available, 1),
        StateBatch(5, 14, acknowledged, 2),
        StateBatch(15, 19, available, 2),
        StateBatch(20, 25, archived, 1),
    )


def test_neighbours_with_the_same_state_become_one_batch() -> None:
    parts = [StateBatch(at, at, RecordState.ACKNOWLEDGED, 1) for at in range(5)]
    assert combine(parts[:2], parts[2:]) == (StateBatch(0, 4, RecordState.ACKNOWLEDGED, 1),)
