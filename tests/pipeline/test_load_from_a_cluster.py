"""A load and a stream from a topic with three replicas while the leaders of its partitions are killed.

The audit balances exactly, and the windows of the stream are those of a batch over the loaded rows.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.session import SparkOptions
from tests.pipeline.staged_job import AUDIT, PARTITIONS, STREAM, StagedJob
from tests.support.processes import until
from tests.support.topics import create_topic
from tests.support.up_process import UpProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.external]

BEFORE, DURING, BAD = 600, 100, 3
"""Records sent to each partition before and after a leader is killed; the first of them cannot be parsed."""

COMMIT_OFFSETS = 100
WAIT_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpProcess]:
    up = UpProcess(tmp_path / "cluster", options=["zookeeper.session.timeout.ms=2000"]).start()
    try:
        yield up
    finally:
        if up.process is not None and up.process.poll() is None:
            up.stop()


class Faults:
    """Kills the leaders of a job's topic, and starts the brokers again."""

    def __init__(self, cluster: UpProcess, job: StagedJob) -> None:
        self._cluster, self._job = cluster, job
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def partitions(self) -> dict[int, PartitionMetadata]:
        return dict(self._admin.list_topics(self._job.topic, timeout=30).topics[self._job.topic].partitions)

    def until_in_sync(self) -> None:
        until(
            lambda: [len(each.isrs) for each in self.partitions().values()] == [3] * PARTITIONS,
            timeout_s=WAIT_S,
            what="all replicas in sync",
        )

    def loaded(self) -> int:
        """Return how many offsets are in the tables."""
        table = self._job.table
        positions = table.positions(self._job.topic, range(PARTITIONS)) if table.exists() else {}
        return sum(found.end_offset for found in positions.values())

    def kill_leader(self, partition: int) -> int:
        """Kill the leader of a partition in the middle of a load, send more, and start the broker again.

        Returns how many offsets were loaded at that time.
        """
        began = self.loaded()
        until(lambda: self.loaded() > began + 2 * COMMIT_OFFSETS, timeout_s=WAIT_S, what="two commits of the load")
        leader = self.partitions()[partition].leader
        self._cluster.kill(leader)
        at_kill = self.loaded()
        self._job.send(range(DURING), bad=BAD, reported=True)
        self._cluster.start_broker(leader)
        self.until_in_sync()
        return at_kill


def test_the_audit_of_load_and_stream_balances_while_leaders_are_killed_and_restarted(
    tmp_path: Path, cluster: UpProcess, spark: SparkSession, spark_options: SparkOptions
) -> None:
    host = SparkHost.of(spark, spark_options)
    job = StagedJob(tmp_path, cluster.bootstrap, f"events-{uuid.uuid4().hex[:8]}", host, sections=STREAM + AUDIT)
    job.rewrite('on_loss = "fail"\n', f'on_loss = "fail"\ncommit_offsets = {COMMIT_OFFSETS}\n')
    faults = Faults(cluster, job)
    create_topic(cluster.bootstrap, f"{job.topic}-per-kind")  # a stream cannot while a replica's broker is dead
    faults.until_in_sync()
    for partition in range(PARTITIONS):
        job.send(range(BEFORE), bad=BAD, reported=True)
        with ThreadPoolExecutor(1) as pool:
            fault = pool.submit(faults.kill_leader, partition)
            assert job.run("load", "stream").ok
            loaded = faults.loaded()
            assert fault.result() < loaded, "the leader was not killed in the middle of the load"
    assert job.run("load", "stream").ok

    every = PARTITIONS * (BEFORE + DURING)
    assert dict(job.ends) == dict.fromkeys(range(PARTITIONS), every)
    found = job.audit()
    total = {n: found["total"][n] for n in ("produced", "in_log", "loaded", "quarantined", "missing", "duplicated")}
    quarantined = 2 * PARTITIONS * BAD * PARTITIONS
    assert total == {
        "produced": every * PARTITIONS,
        "in_log": every * PARTITIONS,
        "loaded": every * PARTITIONS - quarantined,
        "quarantined": quarantined,
        "missing": 0,
        "duplicated": 0,
    }
    assert (found["balanced"], found["faults"]) == (True, [])
    rows = [row for table in ("events", "events_quarantine") for row in job.rows(table, 'partition, "offset"')]
    assert Counter(rows) == {(partition, offset): 1 for partition in range(PARTITIONS) for offset in range(every)}
    assert job.windows() == job.batch() == job.published()
    for node in cluster.nodes:
        assert "Traceback" not in cluster.log(node), cluster.log(node)[-6000:]
