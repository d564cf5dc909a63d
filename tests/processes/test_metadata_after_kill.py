"""The metadata store and the log directories after kill -9 in the middle of admin requests.

What the store knows is what was acknowledged, and of the one request that was under way all or nothing. The directories
follow it: every topic has its logs, under its own id and with what was acknowledged; a topic whose deletion was
acknowledged has none.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ottla.core.ids import parse_id
from tests.support.batches import Written, batch
from tests.support.ottla_process import OttlaProcess
from tests.support.wire_client import ConnectionEnded, Wire

DYING = str(Path(__file__).parents[1] / "support" / "dying_server.py")
STOPS = (1, 3, 8, 13, 21, 34, 47, 66, 85, 104, 131, 160)
"""Changes before which the server dies; all the requests together make some two hundred."""


@dataclass
class Known:
    """Records the responses to the admin."""

    topics: dict[str, int] = field(default_factory=dict)  # and how many partitions
    records: dict[str, bytes] = field(default_factory=dict)  # the one record of partition 0, if it was acknowledged
    under_way: tuple[str, str, int] | None = None  # what was asked and not answered


def create(wire: Wire, known: Known, name: str, partitions: int) -> None:
    known.under_way = ("create", name, partitions)
    new = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] == 0
    known.topics[name], known.under_way = partitions, None


def delete(wire: Wire, known: Known, name: str) -> None:
    known.under_way = ("delete", name, 0)
    assert wire.call("delete_topics", 4, topic_names=[name], timeout=10_000)["responses"][0]["error_code"] == 0
    known.topics.pop(name, None)
    known.records.pop(name, None)
    known.under_way = None


def send(wire: Wire, known: Known, name: str, value: bytes) -> None:
    part = {"index": 0, "records": batch([Written(value)])}
    said = wire.call("produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": name, "partition_data": [part]}])
    assert said["responses"][0]["partition_responses"][0]["error_code"] == 0
    known.records[name] = value


def administer(port: int, known: Known) -> None:
    """Topics come, get a record, go, and come again under the same name."""
    with Wire(port, timeout_s=20) as wire:
        create(wire, known, "arm", 1)
        create(wire, known, "one", 1)
        send(wire, known, "one", b"of the first")
        create(wire, known, "many", 3)
        delete(wire, known, "one")
        create(wire, known, "one", 2)
        send(wire, known, "one", b"of the second")
        send(wire, known, "many", b"of many")
        delete(wire, known, "arm")
        delete(wire, known, "many")
        create(wire, known, "many", 1)
        send(wire, known, "many", b"of many again")
        delete(wire, known, "one")


def allowed(known: Known) -> list[dict[str, int]]:
    """The topics there may be: as acknowledged, with the request under way or without it."""
    found = [dict(known.topics)]
    if known.under_way is not None:
        what, name, partitions = known.under_way
        done = dict(known.topics)
        if what == "create":
            done[name] = partitions
        else:
            done.pop(name)
        found.append(done)
    return found


def first_value(wire: Wire, name: str) -> bytes:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    said = wire.call(
        "fetch",
        11,
        max_wait=0,
        min_bytes=0,
        max_bytes=1 << 20,
        replica_id=-1,
        session_epoch=-1,
        isolation_level=0,
        rack_id="",
        topics=[{"topic": name, "partitions": [part]}],
    )
    answer = said["responses"][0]["partitions"][0]
    assert answer["error_code"] == 0, answer
    data = answer["records"] or b""
    return bytes(data[61 : 12 + struct.unpack_from(">i", data, 8)[0]]) if data else b""


@pytest.mark.slow
@pytest.mark.parametrize("change", STOPS)
def test_metadata_is_what_was_acknowledged_and_the_directories_follow_it(change: int, tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path, prefix=(sys.executable, DYING, str(change))).start()
    known = Known()
    try:
        with pytest.raises((ConnectionEnded, OSError)):
            administer(server.port, known)
    finally:
        server.kill()
    server.prefix = ()
    server.start()
    try:
        look_after(server, known)
        assert server.stop() == 0
    finally:
        server.kill()
    server.assert_log_is_clean()


def look_after(server: OttlaProcess, known: Known) -> None:
    """What the next start has made of it, and that it can be worked with."""
    with Wire(server.port) as wire:
        said = wire.call("metadata", 10, topics=None)["topics"]
        topics = {topic["name"]: len(topic["partitions"]) for topic in said}
        assert topics in allowed(known), f"{topics} after {known}"
        ids = {topic["name"]: topic["topic_id"] for topic in said}
        there = directories(server.data)
        for name, partitions in topics.items():
            for index in range(partitions):
                assert there.pop(f"{name}-{index}") == ids[name]
        # Some logs of an interrupted deletion may be left. The start logs their names, and they are not served.
        left_of = known.under_way[1] if known.under_way is not None and known.under_way[0] == "delete" else None
        assert all(name.rpartition("-")[0] == left_of and left_of not in topics for name in there), there
        assert all(name in server.log for name in there)
        for name, value in known.records.items():
            if name in topics:
                assert value in first_value(wire, name), f"the record of {name} is lost"
        for name in topics:
            send(wire, known, name, b"afterwards")
        if "many" in topics:
            delete(wire, known, "many")
        create(wire, known, "many", 2)


def directories(data: Path) -> dict[str, object]:
    """Each partition's directory and the topic id in it."""
    found: dict[str, object] = {}
    for path in data.iterdir():
        if path.is_dir() and not path.name.endswith("-delete") and not path.name.startswith("__"):
            text = (path / "partition.metadata").read_text()
            found[path.name] = parse_id(text.split("topic_id: ")[1].strip())
    return found
