"""Sends single requests to a broker: helpers of the tests of protocol pitfalls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.peer import Peer
from tests.support.processes import until
from tests.support.wire_client import Answer, Wire

NEWEST = {"fetch": 12, "produce": 9}  # the last versions that name topics by name
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"


def listed(wire: Wire, version: int = 3) -> dict[int, tuple[int, int]]:
    keys = wire.call("api_versions", version, client_software_name="t", client_software_version="1")["api_keys"]
    return {key["api_key"]: (key["min_version"], key["max_version"]) for key in keys}


def produced(
    wire: Wire, naming: dict[str, Any], records: bytes | None, *, version: int = 9, partition: int = 0
) -> Answer:
    part = {"index": partition, "records": records}
    said = wire.call("produce", version, acks=-1, timeout=10_000, topic_data=[naming | {"partition_data": [part]}])
    found: Answer = said["responses"][0]["partition_responses"][0]
    return found


def fetched(wire: Wire, naming: dict[str, Any], offset: int, *, version: int = 12, **more: Any) -> Answer:
    part = {
        "partition": more.pop("partition", 0),
        "fetch_offset": offset,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }
    asked = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "isolation_level": 0,
        "rack_id": "",
    }
    said = wire.call("fetch", version, **(asked | more), topics=[naming | {"partitions": [part]}])
    assert said.get("error_code", 0) == 0
    found: Answer = said["responses"][0]["partitions"][0]
    return found


def offset_at(wire: Wire, topic: str, at_ms: int, *, version: int = 7, partition: int = 0) -> Answer:
    part = {"partition_index": partition, "timestamp": at_ms, "current_leader_epoch": -1}
    said = wire.call("list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    found: Answer = said["topics"][0]["partitions"][0]
    return found


def joined(wire: Wire, group: str, *, member_id: str = "", version: int = 9, **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    fields |= more
    found = settled(lambda: wire.call("join_group", version, **fields))
    if found["error_code"] == 79:
        found = wire.call("join_group", version, **(fields | {"member_id": found["member_id"]}))
    return found


def settled(ask: Callable[[], Answer]) -> Answer:
    """An answer that is not "the coordinator is being loaded"."""
    found: list[Answer] = []
    until(lambda: (found.append(ask()) or found[-1]["error_code"]) not in {14, 15, 16}, what="the coordinator")  # type: ignore[func-returns-value]
    return found[-1]


def the_coordinator_is_there(wire: Wire) -> None:
    settled(lambda: wire.call("find_coordinator", 3, key="any", key_type=0))


def commit(peer: Peer, group: str, topic: str, *, partition: int = 0, epoch: int = -1, text: str | None = None) -> int:
    part = {
        "partition_index": partition,
        "committed_offset": 1,
        "committed_leader_epoch": epoch,
        "committed_metadata": text,
    }

    def ask() -> Answer:
        said = peer.quietly(
            "offset_commit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": topic, "partitions": [part]}],
        )
        found: Answer = said["topics"][0]["partitions"][0]
        return found

    return int(settled(ask)["error_code"])


def committed(peer: Peer, group: str, topic: str) -> Answer:
    said = peer.quietly(
        "offset_fetch", 7, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}], require_stable=True
    )
    found: Answer = said["topics"][0]["partitions"][0]
    return found
