"""An append that fails unexpectedly after its write changes nothing: not the file, not the state in memory."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.core.errors import NotLeaderOrFollower, StorageError
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.state.leader_epochs import LeaderEpochs
from ottla.storage.state.producer_state_manager import ProducerStateManager
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, batch, content, open_directory, open_log

pytestmark = pytest.mark.plain_form(
    "patches methods of the log's parts, so that they fail after they have done their work"
)

STEPS: dict[str, tuple[type[Any], str]] = {
    "the roll": (PartitionLog, "_roll_if_due"),
    "the write": (Segment, "append"),
    "the index": (Segment, "note_batch"),
    "the leader epoch": (LeaderEpochs, "assign"),
    "the producer": (ProducerStateManager, "update"),
}
STEPS_OF_A_FOLLOWER: dict[str, tuple[type[Any], str]] = {**STEPS, "the index": (Segment, "note_batches")}


def _plant(monkeypatch: pytest.MonkeyPatch, log: PartitionLog, step: tuple[type[Any], str]) -> None:
    """Let a step of an append fail after it was done."""
    owner, name = step
    real = getattr(owner, name)

    def fail_after(self: Any, *given: Any, **named: Any) -> Any:
        result = real(self, *given, **named)
        if not log.is_truncating:
            raise AssertionError("planted")
        return result

    monkeypatch.setattr(owner, name, fail_after)


def _state(log: PartitionLog) -> tuple[object, ...]:
    read = content(log.read(0, max_bytes=1 << 20, end_offset=log.end_offset))
    return log.end_offset, log.size_bytes, log.epochs.entries, log.high_watermark, read


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_append_is_removed_and_the_next_one_has_its_offset(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"a", b"b", producer_id=5, epoch=0, sequence=0), leader_epoch=1, now_ms=NOW_MS)
    before = _state(log)
    with monkeypatch.context() as planted:
        _plant(planted, log, STEPS[step])
        for _ in range(4):
            with pytest.raises(NotLeaderOrFollower):
                log.append(batch(b"c", producer_id=5, epoch=0, sequence=2), leader_epoch=2, now_ms=NOW_MS)
            assert _state(log) == before
    appended = log.append(batch(b"c", producer_id=5, epoch=0, sequence=2), leader_epoch=2, now_ms=NOW_MS)
    assert (appended.first_offset, appended.duplicate) == (2, False)
    again = log.append(batch(b"c", producer_id=5, epoch=0, sequence=2), leader_epoch=2, now_ms=NOW_MS)
    assert again.duplicate
    log.flush()
    found = _state(log)
    directory.close()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3, "at the 1st, 2nd and 4th"
    reopened = open_directory(disk).logs[TP]
    reopened.high_watermark = log.high_watermark
    assert _state(reopened) == found


@pytest.mark.parametrize("step", STEPS_OF_A_FOLLOWER)
def test_a_followers_failed_append_is_removed_and_fetched_again(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(SimDisk())
    log.append(batch(b"a"), leader_epoch=1, now_ms=NOW_MS)
    before = _state(log)
    fetched = batch(b"b", base_offset=1, leader_epoch=2, producer_id=5, epoch=0, sequence=0)
    with monkeypatch.context() as planted:
        _plant(planted, log, STEPS_OF_A_FOLLOWER[step])
        with pytest.raises(StorageError):
            log.append_as_follower(fetched, now_ms=NOW_MS)
    assert _state(log) == before
    assert log.append_as_follower(fetched, now_ms=NOW_MS) is not None
    assert log.end_offset == 2


def test_a_directory_is_offline_where_a_failed_append_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(SimDisk())
    _plant(monkeypatch, log, STEPS["the leader epoch"])

    def refuse(_log: PartitionLog, _offset: int) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(PartitionLog, "truncate_to", refuse)
    with pytest.raises(StorageError):
        log.append(batch(b"a"), leader_epoch=2, now_ms=NOW_MS)
    assert log.health.failure is not None
    with pytest.raises(StorageError):
        log.append(batch(b"a"), leader_epoch=1, now_ms=NOW_MS)
