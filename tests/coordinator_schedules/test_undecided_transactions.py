"""A transaction whose outcome does not get into the coordinator's log: no marker is written, and it is aborted.

The random schedules of `test_transactions.py` seldom end a transaction just when the write of its outcome fails and then
abort it; this schedule always does.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import ProducerIdAndEpoch, TopicPartition
from ottla.testing.sim_loop import simulate
from ottla.transactions.metadata import TransactionVersion
from tests.coordinator_schedules.test_transactions import (
    HANGS_MS,
    PARTITIONS,
    TIMEOUT_MS,
    TV_0,
    TV_2,
    Client,
    Cluster,
    Reader,
    answer_of,
    check,
)

NAME = "a"


async def undecided(version: TransactionVersion, rng: random.Random) -> None:
    """Commit while the coordinator's log fails, read meanwhile, and let the transaction time out."""
    cluster = Cluster(rng, failing=0.0)
    cluster.markers.failing = False
    await cluster.coordinator.led.wait_until_loaded()
    along = [Reader(tp, partition) for tp, partition in cluster.partitions.items()]
    client = Client(cluster, NAME, "p0", version)
    began = await cluster.coordinator.init_producer_id(NAME, TIMEOUT_MS, None)
    producer = ProducerIdAndEpoch(began.producer_id, began.producer_epoch)
    client.outcomes[b"p0.0"] = ("aborted", await write(cluster, producer, version))

    cluster.log.failing_rate, cluster.log.written_rate = 1.0, 0.0
    ended = await answer_of(
        cluster.coordinator.end(NAME, producer.producer_id, producer.epoch, committed=True, client_version=version)
    )
    assert ended.error is not ErrorCode.NONE, "a commit that was not written is answered as if it were"
    await asyncio.sleep(1)
    for reader in along:
        reader.poll()
        assert not reader.found, f"{reader.found} is read before it is committed"
    if rng.random() < 0.5:
        await cluster.restart()
    cluster.log.failing_rate = 0.0
    await asyncio.sleep(HANGS_MS / 1000 + 2)
    check(cluster, [client], along)
    await cluster.coordinator.close()


async def write(
    cluster: Cluster, producer: ProducerIdAndEpoch, version: TransactionVersion
) -> set[tuple[TopicPartition, bytes]]:
    """Write one record to each partition."""
    written = set()
    for where in PARTITIONS:
        if version is TV_0:
            error = await cluster.coordinator.add_partitions(
                NAME, producer.producer_id, producer.epoch, frozenset({where}), client_version=version
            )
            assert error is ErrorCode.NONE
        value = f"p0.0.{where}".encode()
        while error := await cluster.produce(NAME, producer, where, 0, value, second=version is TV_2):
            assert error is ErrorCode.CONCURRENT_TRANSACTIONS
            await asyncio.sleep(0.05)
        written.add((where, value))
    return written


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_a_transaction_whose_outcome_is_not_written_is_aborted_and_never_read(
    version: TransactionVersion, seed: int
) -> None:
    simulate(partial(undecided, version), seed=seed)
