"""A load that runs all day, and what is killed with -9 under it: its driver, a Python worker of Spark, the broker, the
server of its object store.

The moments are drawn from a seed, as waits for a process that does not end by itself. Records come in all the time, one
in nine of them no JSON. Nothing is checked while it runs; the check at the end reads the tables' files with DuckDB.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants, until
from tests.support.s3_servers import BUCKET, REGION, S3Server

TOPIC, PARTITIONS = "events", 3
VICTIMS = ("driver", "driver and its children", "worker", "broker")
_MOMENT_S_MAX = 2.5
_ROUND_S_MAX = 400.0


def workers_of(pid: int) -> list[int]:
    """Spark's Python workers below a driver: the children of its Python daemon."""
    return descendants(pid, running=b"pyspark.daemon")[1:]  # the first is the daemon itself


@dataclass
class LoadRun:
    """Broker, producer and load."""

    root: Path
    chance: random.Random
    options: tuple[str, ...] = ()
    server: S3Server | None = None
    """Where the lake is; None for a directory."""
    broker: OttlaProcess = field(init=False)
    load: subprocess.Popen[bytes] | None = None
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    kills: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = OttlaProcess(self.root / "broker")

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def catalog(self) -> Path:
        """The catalog of Iceberg tables in an object store."""
        return self.root / "catalog.db"

    def command(self, *more: str) -> list[str]:
        program = str(Path(sys.executable).with_name("ottla"))
        where = ["--lake", str(self.lake), "--brokers", self.broker.bootstrap, "--master", "local[2,4]"]
        if self.server is not None:
            where = ["--job", str(self._job_file(self.server)), "--master", "local[2,4]"]
        where += ["--wait", "2m"]  # on a busy machine a killed broker is back after more than the default of 8 s
        if self.server is not None:
            return [program, "pipeline", "load", *where, "--quiet", "--format", "json", *more]
        return [program, "pipeline", "load", TOPIC, *where, "--quiet", "--format", "json", *self.options, *more]

    def _job_file(self, server: S3Server) -> Path:
        path = self.root / "job.toml"
        path.write_text(
            f'[brokers]\nbootstrap = "{self.broker.bootstrap}"\n'
            f'[lake]\npath = "s3://{BUCKET}/lake"\nformat = "{self.options[-1]}"\nendpoint = "{server.endpoint}"\n'
            f'region = "{REGION}"\ncatalog = "sqlite:///{self.catalog}"\n'
            f'[spark]\nwork = "{self.root / "spark"}"\n'
            f'[[load]]\ntopics = ["{TOPIC}"]\n'
        )
        return path

    def start_load(self) -> None:
        """One that goes on by itself, in rounds as short as it can."""
        with (self.root / "load.out").open("ab") as out, (self.root / "load.err").open("ab") as errors:
            self.load = subprocess.Popen(self.command("--every", "1ms"), stdout=out, stderr=errors)

    def load_to_the_end(self) -> None:
        done = subprocess.run(self.command(), capture_output=True, timeout=_ROUND_S_MAX * 2, check=False)
        assert done.returncode == 0, done.stderr.decode()

    def run_rounds(self) -> int:
        """Rounds of the load that brought something."""
        try:
            lines = (self.root / "load.out").read_text().splitlines()
        except FileNotFoundError:
            return 0
        rounds = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return sum(any(topic["commits"] for topic in one["load"]["result"]) for one in rounds)

    def kill(self, victim: str) -> None:
        """One of them, at a random moment after a round has gone well."""
        assert self.load is not None
        self._wait_for_a_round()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.load.wait(self.chance.uniform(0, _MOMENT_S_MAX))
        assert not self.load_is_dead(), (self.root / "load.err").read_text()
        self.kills.append(victim)
        match victim:
            case "driver":
                self._end([self.load.pid])
                self.start_load()
            case "driver and its children":
                self._end([self.load.pid, *descendants(self.load.pid)])
                self.start_load()
            case "worker":
                found = workers_of(self.load.pid)
                self._end([self.chance.choice(found)] if found else [])
            case "store":
                assert self.server is not None
                self.server.kill()
                self.server.start()
            case _:
                self.broker.kill()
                self.broker.start()

    def _wait_for_a_round(self) -> None:
        before = self.run_rounds()
        until(
            lambda: self.run_rounds() > before or self.load_is_dead(),
            timeout_s=_ROUND_S_MAX,
            what="a round of the load",
        )

    def load_is_dead(self) -> bool:
        return self.load is None or self.load.poll() is not None

    def _end(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.load is not None and self.load.pid in pids:
            self.load.wait()

    def stop_load(self) -> None:
        """As an operator would: it ends its round and says that all is well."""
        assert self.load is not None
        self._wait_for_a_round()  # while Python starts, no signal handler is installed yet
        self.load.send_signal(signal.SIGTERM)
        assert self.load.wait(_ROUND_S_MAX) == 0, (self.root / "load.err").read_text()

    def stop(self) -> None:
        if self.load is not None and self.load.poll() is None:
            children = descendants(self.load.pid)
            self.load.kill()
            self.load.wait()
            self._end(children)
        if self.broker.process is not None and self.broker.process.poll() is None:
            self.broker.stop()

    def ends(self) -> dict[int, int]:
        """Where the log's partitions end."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "check"})
        try:
            return {p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p))[1] for p in range(PARTITIONS)}
        finally:
            consumer.close()


@contextlib.contextmanager
def producing(load_run: LoadRun) -> Iterator[None]:
    """Records all the time, in a thread."""
    over = threading.Event()
    settings = {
        "bootstrap.servers": load_run.broker.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 20,
        "message.timeout.ms": 300_000,
        "log_level": 0,
    }
    producer = Producer(settings)

    def answered(number: int, error: object, _message: object) -> None:
        assert error is None, error
        load_run.acknowledged.add(number)

    def work() -> None:
        while not over.wait(0.01):
            for _ in range(20):
                n = load_run.sent
                value = b"no json" if n % 9 == 0 else json.dumps({"n": n, "x": n / 4 if n % 5 == 0 else 1}).encode()
                producer.produce(TOPIC, value, partition=n % PARTITIONS, on_delivery=partial(answered, n))
                load_run.sent += 1
            producer.poll(0)
        assert producer.flush(120) == 0

    thread = threading.Thread(target=work, name="producer")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
