"""Counts what brokers do for one request: Python frames, calls into C, allocations. No time is measured.

    python -m tests.support.hot_path_counts             writes the file to which tests/tidy/test_hot_path_counts.py holds
    OTTLA_PLAIN=1 python -m tests.support.hot_path_counts frames "produce, acks=all"         lists the functions entered

The brokers run in this process, and the event loop is advanced turn by turn, from the bytes of a request to the bytes of
its response. A count is the least of many requests, because a timer may fire in some of them.

- frames, C calls: `sys.setprofile`, of functions in `src/ottla` alone, without the testing kit and without the loops over
  bytes that Cython compiles (`records/_*.py`). A function that mypyc has compiled has no frame and no event, so the plain
  form is counted.
- allocations: requests for memory in CPython's object domain, by a small C library, in either form. Those of the event
  loop are among them, those of the client are not. What comes from a free list (short tuples, floats, lists) is not.

The group commit runs on the loop, as it does on a fast disk, however fast this disk is.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ottla.metadata_store import broker_registration, znodes
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines
from ottla.wire.hot.replica_fetch import FetchRequestWriter, decode_fetch_answer
from tests.support.batches import Written, batch
from tests.support.form import is_compiled
from tests.support.wire_client import Wire, encode

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "tidy" / "hot_path_counts.toml"
HEAD = """\
# What a broker does for one request, written by `python -m tests.support.hot_path_counts`, which explains the counts.
# tests/tidy/test_hot_path_counts.py fails where a count is exceeded by more than 2 %. A change that makes one smaller
# writes the file again; one that makes one larger says in its commit what it is for."""
PLAIN, COMPILED = "plain", "compiled"
SOURCES = str(ROOT / "src" / "ottla") + os.sep
NOT_COUNTED = (f"{SOURCES}records{os.sep}_", f"{SOURCES}testing{os.sep}")
Counts = dict[str, dict[str, int]]
"""Scenario -> what is counted -> how often it happened for one request."""
MANY = 100
"""Partitions of the scenarios with many."""
REST_TURNS = 12
"""Turns of the loop after the response, in which a follower sends its next fetch."""
BATCH = batch([Written(bytes(200), None)])
MAX_BYTES = 1 << 20
FOLLOWER = 9
"""The node id of a follower whose fetches are sent by the count itself."""

_ALLOCATION_COUNTER = r"""
#include <Python.h>
static PyMemAllocatorEx below;
static volatile long count, enabled;
static void *counting_malloc(void *c, size_t n) { count += enabled; return below.malloc(below.ctx, n); }
static void *counting_calloc(void *c, size_t m, size_t n) { count += enabled; return below.calloc(below.ctx, m, n); }
static void *counting_realloc(void *c, void *p, size_t n) { return below.realloc(below.ctx, p, n); }
static void counting_free(void *c, void *p) { below.free(below.ctx, p); }
void install(void) {
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &below);
    PyMemAllocatorEx ours = {0, counting_malloc, counting_calloc, counting_realloc, counting_free};
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
}
void enable(int on) { enabled = on; }
long total(void) { return count; }
"""


def build_library(directory: Path) -> Path | None:
    """Compile the counter of allocations; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = directory / "allocations.c", directory / "allocations.so"
    source.write_text(_ALLOCATION_COUNTER, encoding="ascii")
    include = sysconfig.get_path("include")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{include}", source, "-o", library], check=False)
    return library if built.returncode == 0 else None


# ---- Counters


class EventCounter(Protocol):
    """Counts between `start` and `stop`."""

    def start(self) -> None:
        """Count from now on."""
        ...

    def stop(self) -> dict[str, int]:
        """Return what was counted."""
        ...


class Frames:
    """Counts the 'call' and 'c_call' events of this thread that belong to Ottla's sources."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self._c_calls = 0

    def start(self) -> None:
        """Count from now on."""
        self.functions, self._c_calls = Counter(), 0
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(SOURCES) or path.startswith(NOT_COUNTED):
            return
        if event == "call":
            self.functions[f"{path.removeprefix(SOURCES)}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            self._c_calls += 1

    def stop(self) -> dict[str, int]:
        """Return what was counted."""
        sys.setprofile(None)
        return {"frames": self.functions.total(), "c_calls": self._c_calls}


class Allocations:
    """Counts allocations by a C library, because no Python code can count them without allocating."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.PyDLL(str(library))
        self._library.total.restype = ctypes.c_long
        self._library.install()
        self._before = 0

    def start(self) -> None:
        """Count from now on."""
        self._before = self._library.total()
        self._library.enable(1)

    def stop(self) -> dict[str, int]:
        """Return what was counted."""
        self._library.enable(0)
        return {"allocations": self._library.total() - self._before}


# ---- Brokers and their client


class SteppedWire(Wire):
    """A client of brokers in this thread: while it waits for a response it advances their loop."""

    def __init__(self, brokers: SteppedBrokers, node_id: int) -> None:
        super().__init__(brokers.cluster.ports[node_id])
        self._brokers = brokers

    @property
    def is_answered(self) -> bool:
        """Whether there are bytes to receive."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def _exactly(self, size: int) -> bytes:
        while not self.is_answered:
            self._brokers.run_turn()
        return super()._exactly(size)


class SteppedBrokers:
    """Brokers whose event loop is advanced turn by turn."""

    def __init__(self, path: Path, brokers: int) -> None:
        self._loop = asyncio.new_event_loop()
        self.cluster: TestCluster = self.run(self._start(path, brokers))

    async def _start(self, path: Path, brokers: int) -> TestCluster:
        options = {
            "ottla.busy.poll.us": "0",  # turns without work would be counted
            "offsets.topic.replication.factor": "1",
        }
        cluster = TestCluster(RealMachines(path), options=options)
        await cluster.start(brokers)
        return cluster

    def run(self, work: Any) -> Any:
        """Run a coroutine to its end."""
        return self._loop.run_until_complete(work)

    def run_turn(self) -> None:
        """Run one turn of the loop."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def make_disks_fast(self) -> None:
        """Have the next round of each group commit run on the loop."""
        for broker in self.cluster.brokers:
            for commit in self.cluster.services(broker).replicas.group_commits.values():
                commit.speed.is_fast, commit.speed.average_seconds, commit.speed._rounds = True, 0.0, 0

    def close(self) -> None:
        """Stop the brokers."""
        self.run(self.cluster.close())
        self._loop.close()


class Scenario:
    """Requests of one kind, one after the other on one connection."""

    name = ""
    warm_up, requests = 30, 41
    rest_turns = 0

    def __init__(self, brokers: SteppedBrokers) -> None:
        self.brokers = brokers
        self.wire = SteppedWire(brokers, 1)
        self.sent = 0

    def next_frame(self) -> bytes:
        """Prepare the next request; what happens here is not counted."""
        raise NotImplementedError

    def check(self, answer: bytes) -> None:
        """Assert that the request was served."""

    def count(self, counter: EventCounter) -> dict[str, int]:
        """Send one request; return what was counted until its response arrived, and for the turns of rest."""
        frame = self.next_frame()
        frame = struct.pack(">i", len(frame)) + frame
        self.brokers.make_disks_fast()
        self.wire.socket.sendall(frame)
        counter.start()
        while not self.wire.is_answered:
            self.brokers.run_turn()
        for _ in range(self.rest_turns):
            self.brokers.run_turn()
        counted = counter.stop()
        self.check(self.wire.receive_frame())
        self.sent += 1
        return counted


def _topic_of(wire: Wire, name: str, partitions: int = 1, *, factor: int = 1, durability: str = "fsync") -> uuid.UUID:
    configs = [{"name": "durability", "value": durability}]
    new = {"name": name, "num_partitions": partitions, "replication_factor": factor, "configs": configs}
    created = wire.call("create_topics", 7, topics=[new], timeout=20_000)["topics"][0]
    assert not created["error_code"], created
    topic_id: uuid.UUID = created["topic_id"]
    return topic_id


def _produce_frame(topic_id: uuid.UUID, acks: int, partitions: int = 1) -> bytes:
    parts = [{"index": index, "records": BATCH} for index in range(partitions)]
    data = {"topic_id": topic_id, "partition_data": parts}
    return encode("produce", 13, 1, {"acks": acks, "timeout": 30_000, "topic_data": [data]})


class Produce(Scenario):
    """One record of 200 bytes for one partition with one replica, durability=fsync."""

    name = "produce, acks=all"
    acks = -1

    def __init__(self, brokers: SteppedBrokers) -> None:
        super().__init__(brokers)
        self.topic_id = _topic_of(self.wire, f"produced-{self.acks}")
        self._frame = _produce_frame(self.topic_id, self.acks)

    def next_frame(self) -> bytes:
        return self._frame

    def check(self, answer: bytes) -> None:
        # correlation id, tags, one topic, its id, one partition, its index
        (error,) = struct.unpack_from(">h", answer, 4 + 1 + 1 + 16 + 1 + 4)
        assert not error, error


class ProduceToLeader(Produce):
    """The same with acks=1; the leader is the only replica, so that the response waits for the flush."""

    name = "produce, acks=1"
    acks = 1


class Fetch(Scenario):
    """In a session with one partition that has one batch to read."""

    name = "fetch"

    def __init__(self, brokers: SteppedBrokers) -> None:
        super().__init__(brokers)
        produce = Produce.__new__(Produce)
        Scenario.__init__(produce, brokers)
        self._topic_id = _topic_of(self.wire, "fetched")
        self.wire.send_frame(_produce_frame(self._topic_id, -1))
        produce.check(self.wire.receive_frame())
        self.wire.send_frame(self._frame(0, 0))
        (self._session_id,) = struct.unpack_from(">i", self.wire.receive_frame(), 4 + 1 + 4 + 2)

    def _frame(self, session_id: int, session_epoch: int) -> bytes:
        partition = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": MAX_BYTES,
        }
        values = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": MAX_BYTES,
            "isolation_level": 0,
            "session_id": session_id,
            "session_epoch": session_epoch,
            "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        return encode("fetch", 17, 1, values)

    def next_frame(self) -> bytes:
        return self._frame(self._session_id, self.sent + 1)

    def check(self, answer: bytes) -> None:
        assert len(answer) > 200, "there should be data"


class Heartbeat(Scenario):
    """Of a member of a classic group, generation 1."""

    name = "heartbeat, classic group"

    def __init__(self, brokers: SteppedBrokers) -> None:
        super().__init__(brokers)
        protocol = {"name": "range", "metadata": b""}
        joining = {
            "group_id": "classic",
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }
        self._find_coordinator("classic")
        self.member_id = self.wire.call("join_group", 7, member_id="", **joining)["member_id"]
        joined = self.wire.call("join_group", 7, member_id=self.member_id, **joining)
        assert not joined["error_code"], joined
        synced = self.wire.call(
            "sync_group",
            5,
            group_id="classic",
            generation_id=joined["generation_id"],
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": self.member_id, "assignment": b""}],
        )
        assert not synced["error_code"], synced
        values = {"group_id": "classic", "generation_id": joined["generation_id"], "member_id": self.member_id}
        self._frame = encode("heartbeat", 4, 1, values)

    def _find_coordinator(self, group: str) -> None:
        """Have the internal topic created, and its partition loaded."""
        while True:
            found = self.wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group])["coordinators"][0]
            beat = self.wire.call("describe_groups", 5, groups=[group])["groups"][0]
            if not found["error_code"] and not beat["error_code"]:
                return
            self.brokers.run(asyncio.sleep(0.01))

    def next_frame(self) -> bytes:
        return self._frame

    def check(self, answer: bytes) -> None:
        (error,) = struct.unpack_from(">h", answer, 4 + 1 + 4)  # correlation id, tags, throttle time
        assert not error, error


class ConsumerGroupHeartbeat(Heartbeat):
    """Of a member of a consumer group (KIP-848) that has its assignment."""

    name = "heartbeat, consumer group"

    def __init__(self, brokers: SteppedBrokers) -> None:
        Scenario.__init__(self, brokers)
        _topic_of(self.wire, "consumed")
        self._find_coordinator("modern")
        member = str(uuid.UUID(int=1))
        values: dict[str, Any] = {
            "group_id": "modern",
            "member_id": member,
            "member_epoch": 0,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": ["consumed"],
            "topic_partitions": [],
        }
        joined = self.wire.call("consumer_group_heartbeat", 1, **values)
        assert not joined["error_code"], joined
        (owned,) = joined["assignment"]["topic_partitions"]
        values.update(member_epoch=joined["member_epoch"], subscribed_topic_names=None, topic_partitions=[owned])
        self.wire.call("consumer_group_heartbeat", 1, **values)
        values.update(topic_partitions=None, rebalance_timeout=-1)
        self._frame = encode("consumer_group_heartbeat", 1, 1, values)


class OffsetCommit(Heartbeat):
    """One partition, for a group without members, written to the internal topic with acks=all."""

    name = "offset commit"

    def __init__(self, brokers: SteppedBrokers) -> None:
        Scenario.__init__(self, brokers)
        _topic_of(self.wire, "committed")
        self._find_coordinator("simple")
        partition = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        values = {
            "group_id": "simple",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "committed", "partitions": [partition]}],
        }
        self._frame = encode("offset_commit", 9, 1, values)

    def check(self, answer: bytes) -> None:
        # correlation id, tags, throttle time, one topic, its name, one partition, its index
        (error,) = struct.unpack_from(">h", answer, 4 + 1 + 4 + 1 + 1 + len("committed") + 1 + 4)
        assert not error, error


class LeaderOfFollower(Scenario):
    """The leader's part: a follower names one partition at its end, and gets one batch."""

    name = "replica fetch, 1 partition, leader"
    partitions = 1

    def __init__(self, brokers: SteppedBrokers) -> None:
        super().__init__(brokers)
        self._topic = f"led-{self.partitions}"
        self._broker_epoch: int = brokers.run(self._register())
        self._topic_id = brokers.cluster.services(1).cluster.current.topics[self._topic].topic_id
        self._producer = SteppedWire(brokers, 1)
        self._produce_frame = _produce_frame(self._topic_id, 1, self.partitions)
        self._writer = FetchRequestWriter("follower", FOLLOWER, max_wait_ms=500, min_bytes=1, max_bytes=10 * MAX_BYTES)
        self._name_all(0)
        self.wire.socket.sendall(self._writer.frame(1, 0, 0, self._broker_epoch))
        self._session_id = decode_fetch_answer(memoryview(self.wire.receive_frame())).session_id

    async def _register(self) -> int:
        cluster = self.brokers.cluster
        path = znodes.broker_path(FOLLOWER)
        session = cluster.store.session()
        if await session.get(path) is None:
            endpoints = {"PLAINTEXT": znodes.Endpoint("127.0.0.1", 1)}
            broker = znodes.BrokerRegistration(FOLLOWER, endpoints, {"PLAINTEXT": "PLAINTEXT"}, None, 0)
            await broker_registration.register(session, [broker_registration.registration(broker)])
            await cluster.until(lambda: FOLLOWER in cluster.services(1).cluster.current.brokers)
        assignments = [(index, (1, FOLLOWER)) for index in range(self.partitions)]
        await cluster.services(1).controller.create_topic(self._topic, assignments=assignments)
        node = await session.get(path)
        assert node is not None
        return node.created

    def _name_all(self, offset: int) -> None:
        for index in range(self.partitions):
            self._writer.name(
                self._topic_id.bytes,
                index,
                leader_epoch=0,
                fetch_offset=offset,
                last_fetched_epoch=0 if offset else -1,
                log_start=0,
                max_bytes=MAX_BYTES,
                high_watermark=offset,
            )

    def next_frame(self) -> bytes:
        self.brokers.make_disks_fast()
        self._producer.send_frame(self._produce_frame)
        self._producer.receive_frame()
        for _ in range(REST_TURNS):
            self.brokers.run_turn()
        self._name_all(self.sent)
        return bytes(self._writer.frame(1, self._session_id, self.sent + 1, self._broker_epoch)[4:])

    def check(self, answer: bytes) -> None:
        fetched = decode_fetch_answer(memoryview(answer))
        assert [each.error_code for each in fetched.partitions] == [0] * self.partitions
        assert all(each.records is not None for each in fetched.partitions)


class LeaderOfFollowerOfMany(LeaderOfFollower):
    """The same with one batch each for many partitions."""

    name = f"replica fetch, {MANY} partitions, leader"
    partitions = MANY
    warm_up, requests = 10, 11


class ReplicatedProduce(Produce):
    """acks=all, two replicas, durability=page-cache: the request, the follower's answer and its next fetch."""

    name = "produce, acks=all, 2 replicas"
    rest_turns = REST_TURNS
    partitions = 1

    def __init__(self, brokers: SteppedBrokers) -> None:
        Scenario.__init__(self, brokers)
        topic = f"replicated-{self.partitions}"
        assignments = [(index, (1, 2)) for index in range(self.partitions)]
        cluster = brokers.cluster
        configs: dict[str, str | None] = {"durability": "page-cache"}
        controller = cluster.services(cluster.controller).controller
        brokers.run(controller.create_topic(topic, assignments=assignments, configs=configs))
        brokers.run(cluster.known_everywhere(topic))
        self.topic_id = cluster.services(1).cluster.current.topics[topic].topic_id
        self._frame = _produce_frame(self.topic_id, -1, self.partitions)


class ReplicatedProduceOfMany(ReplicatedProduce):
    """The same with one batch each for many partitions."""

    name = f"produce, acks=all, 2 replicas, {MANY} partitions"
    partitions = MANY
    warm_up, requests = 10, 11


SCENARIOS: dict[int, Sequence[type[Scenario]]] = {
    1: (
        Produce,
        ProduceToLeader,
        Fetch,
        Heartbeat,
        ConsumerGroupHeartbeat,
        OffsetCommit,
        LeaderOfFollower,
        LeaderOfFollowerOfMany,
    ),
    2: (ReplicatedProduce, ReplicatedProduceOfMany),
}
"""By the number of brokers."""


def count_all(counter: EventCounter, listed: str | None = None) -> Counts:
    """Count every scenario, or list the functions that the one named `listed` enters."""
    counts: Counts = {}
    for number, scenarios in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as directory:
            brokers = SteppedBrokers(Path(directory), number)
            for make in scenarios:
                if listed not in {None, make.name}:
                    continue
                scenario = make(brokers)
                for _ in range(scenario.warm_up):
                    scenario.count(counter)
                counted = [scenario.count(counter) for _ in range(scenario.requests)]
                least = counts[scenario.name] = {what: min(one[what] for one in counted) for what in counted[0]}
                while listed is not None and isinstance(counter, Frames):
                    if scenario.count(counter)["frames"] == least["frames"]:
                        print(*(f"{times:5} {name}" for name, times in sorted(counter.functions.items())), sep="\n")
                        break
                scenario.wire.close()
            brokers.close()
    return counts


def counts_of(form: str, directory: Path) -> Counts:
    """Count everything that a form of the sources, plain or compiled, has counts of, in processes of their own."""
    library = build_library(directory)
    kinds = [("allocations", str(library))] if library is not None else []
    if form == PLAIN:
        kinds.append(("frames", ""))
    environment = {**os.environ, "OTTLA_PLAIN": "1" if form == PLAIN else ""}
    command = [sys.executable, "-m", __spec__.name if __spec__ is not None else __name__]
    processes = [
        subprocess.Popen([*command, *kind], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for kind in kinds
    ]
    counts: Counts = {}
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output
        for name, counted in json.loads(output.splitlines()[-1]).items():
            counts.setdefault(name, {}).update(counted)
    return counts


def read_file() -> dict[str, Counts]:
    """Return the counts of the file by form."""
    forms: dict[str, Counts] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return forms


def write_file() -> None:
    """Write what is counted now to the file. A form that does not run here keeps its counts."""
    before, lines = read_file(), [HEAD]
    with tempfile.TemporaryDirectory() as directory:
        for form in (PLAIN, COMPILED):
            lines.append(f"\n[{form}]")
            counts = counts_of(form, Path(directory)) if form == PLAIN or is_compiled() else before[form]
            for name, counted in counts.items():
                values = ", ".join(f"{what} = {number}" for what, number in sorted(counted.items(), reverse=True))
                lines.append(f'"{name}" = {{ {values} }}')
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the file, or count one kind and print it."""
    match list(arguments):
        case []:
            write_file()
        case ["frames", listed] if listed:
            count_all(Frames(), listed)
        case ["frames", _]:
            print(json.dumps(count_all(Frames())))
        case ["allocations", library]:
            print(json.dumps(count_all(Allocations(Path(library)))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
