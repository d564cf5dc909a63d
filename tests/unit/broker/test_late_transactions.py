"""Tests the report of transactions that are open for longer than any coordinator allows."""

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.maintenance.late_transactions import BUFFER_MS, LateTransactions
from ottla.storage.log.partition_log import AppendOrigin
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, marker, open_directory

TIMEOUT_MS = 900_000


def test_a_late_transaction_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    log = open_directory(SimDisk()).create_log(TP, uuid.UUID(int=7))
    log.append(batch(b"a", producer_id=9, epoch=0, sequence=0, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    partition = SimpleNamespace(log=log, leads=True, topic_partition=TP)
    clock = StillClock()
    late = LateTransactions(cast("Any", SimpleNamespace(partitions={TP: partition})), clock, lambda: TIMEOUT_MS)

    def check(after_ms: int) -> int:
        clock.now_ms = NOW_MS + after_ms
        asyncio.run(late.check())
        return len([line for line in caplog.messages if "readers of committed records" in line])

    assert check(TIMEOUT_MS + BUFFER_MS) == 0
    assert check(TIMEOUT_MS + BUFFER_MS + 1) == 1
    assert check(TIMEOUT_MS + BUFFER_MS + 2) == 1 and len(late) == 1
    assert f"of {TP} stop at offset 0: the transaction of producer 9" in caplog.text
    log.append(marker(9, 0, commit=False), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    check(TIMEOUT_MS + BUFFER_MS + 3)
    assert len(late) == 0
