"""Tests one protocol pitfall each: reading, groups and administration (docs/protocol-pitfalls.md has all).

They run against Ottla, and with OTTLA_TEST_BROKER=kafka against the real Kafka, which must pass them too.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.compat.single_requests import (
    SUBSCRIPTION,
    commit,
    committed,
    fetched,
    joined,
    offset_at,
    produced,
    settled,
    the_coordinator_is_there,
)
from tests.conftest import Broker
from tests.differential.peer import Peer
from tests.support.batches import AT_MS, batch, numbered
from tests.support.processes import until
from tests.support.wire_client import Answer, Wire

pytestmark = pytest.mark.external


def test_pitfall_24_an_offset_within_a_batch_brings_the_whole_batch(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(10)))
    assert fetched(peer.wire, peer.naming(topic), 9)["records"] == batch(numbered(10), leader_epoch=0)


def test_pitfall_25_one_whole_batch_comes_whatever_the_limits(peer: Peer) -> None:
    topic = peer.topic("t")
    for _ in range(2):
        peer.write(topic, batch(numbered(10)))
    whole = batch(numbered(10), leader_epoch=0)
    assert fetched(peer.wire, peer.naming(topic), 0, max_bytes=1)["records"] == whole
    assert fetched(peer.wire, peer.naming(topic), 0, partition_max_bytes=1)["records"] == whole


def test_pitfall_26_a_long_poll_ends_on_an_append_and_at_once_on_an_error(peer: Peer, broker: Broker) -> None:
    topic = peer.topic("t")

    def append() -> None:
        with Wire(broker.port) as other:
            produced(other, peer.naming(topic), batch())

    began = time.monotonic()
    later = threading.Timer(0.3, append)
    later.start()
    assert fetched(peer.wire, peer.naming(topic), 0, max_wait=20_000, min_bytes=1)["records"]
    assert 0.2 < time.monotonic() - began < 8
    later.join()
    began = time.monotonic()
    assert fetched(peer.wire, peer.naming(topic), 0, max_wait=20_000, min_bytes=1, partition=7)["error_code"] == 3
    assert time.monotonic() - began < 8


def test_pitfall_27_a_fetch_session_is_incremental_and_checks_its_epoch(peer: Peer) -> None:
    one, two = peer.topic("one"), peer.topic("two")
    ask: dict[str, Any] = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": ""}
    part = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }
    both = [{"topic": each, "partitions": [part]} for each in (one, two)]
    first = peer.quietly("fetch", 12, **ask, session_epoch=0, topics=both)
    session = first["session_id"]
    assert len(first["responses"]) == 2
    assert session > 0
    assert peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=1)["responses"] == []
    peer.write(two, batch())
    assert [
        each["topic"] for each in peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=2)["responses"]
    ] == [two]
    assert peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=9)["error_code"] == 71
    assert peer.quietly("fetch", 12, **ask, session_id=session + 99, session_epoch=1)["error_code"] == 70


def test_pitfall_28_aborted_transactions_are_for_read_committed_only(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch())
    assert fetched(peer.wire, peer.naming(topic), 0, isolation_level=0)["aborted_transactions"] is None
    committed = fetched(peer.wire, peer.naming(topic), 0, isolation_level=1)
    assert committed["aborted_transactions"] == []
    assert committed["last_stable_offset"] == 1
    assert committed["records"]


def test_pitfall_29_no_preferred_replica_and_no_current_leader_are_minus_one(peer: Peer) -> None:
    topic = peer.topic("t")
    said = fetched(peer.wire, peer.naming(topic), 0)
    assert said["preferred_read_replica"] == -1
    assert said["current_leader"] == {"leader_id": -1, "leader_epoch": -1}


def test_pitfall_30_the_end_is_empty_success_and_beyond_is_out_of_range(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(3)))
    assert (
        fetched(peer.wire, peer.naming(topic), 3)["error_code"],
        fetched(peer.wire, peer.naming(topic), 3)["records"],
    ) == (0, b"")
    assert fetched(peer.wire, peer.naming(topic), 4)["error_code"] == 1
    peer.quietly(
        "delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}], timeout=9000
    )
    assert fetched(peer.wire, peer.naming(topic), 1)["error_code"] == 1


def test_pitfall_31_a_future_epoch_is_unknown_and_a_known_one_ends_where_the_log_ends(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(3)))

    def end_of(epoch: int) -> tuple[int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        said = peer.quietly(
            "offset_for_leader_epoch", 4, replica_id=-2, topics=[{"topic": topic, "partitions": [part]}]
        )
        found = said["topics"][0]["partitions"][0]
        return found["leader_epoch"], found["end_offset"]

    assert (end_of(0), end_of(9)) == ((0, 3), (-1, -1))


def test_pitfall_32_a_time_finds_the_first_record_at_or_after_it(peer: Peer) -> None:
    topic = peer.topic("t")
    for start_ms in (AT_MS, AT_MS + 1000, AT_MS + 500):
        peer.write(topic, batch(numbered(5), base_timestamp_ms=start_ms))

    def found(at_ms: int) -> tuple[int, int]:
        said = offset_at(peer.wire, topic, at_ms)
        return said["offset"], said["timestamp"]

    assert found(AT_MS + 2) == (2, AT_MS + 2)
    assert found(AT_MS + 5) == (5, AT_MS + 1000)
    assert found(AT_MS + 1005) == (-1, -1)
    assert found(-3) == (9, AT_MS + 1004)
    assert (found(-1)[0], found(-2)[0]) == (15, 0)


def test_pitfall_33_every_response_with_a_leader_epoch_field_sets_it(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch())
    the_coordinator_is_there(peer.wire)
    assert peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["partitions"][0]["leader_epoch"] == 0
    assert offset_at(peer.wire, topic, -1)["leader_epoch"] == 0
    commit(peer, f"{peer.stem}-g", topic, epoch=0)
    assert committed(peer, f"{peer.stem}-g", topic)["committed_leader_epoch"] == 0


def test_pitfall_34_a_first_join_gets_an_id_and_generations_rise_by_one(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    # The rebalance at the end waits for this member's id to expire.
    bare = {"group_id": group, "session_timeout": 6_000, "rebalance_timeout": 6_000, "protocol_type": "consumer"}
    said = settled(
        lambda: peer.quietly(
            "join_group", 4, **bare, member_id="", protocols=[{"name": "range", "metadata": SUBSCRIPTION}]
        )
    )
    assert (said["error_code"], bool(said["member_id"])) == (79, True)
    first = joined(peer.wire, group)
    assert (first["generation_id"], first["leader"], len(first["members"])) == (1, first["member_id"], 1)
    plan = [{"member_id": first["member_id"], "assignment": b"all"}]
    peer.quietly("sync_group", 3, group_id=group, generation_id=1, member_id=first["member_id"], assignments=plan)
    again = joined(peer.wire, group, member_id=first["member_id"])
    assert again["generation_id"] == 2


def test_pitfall_35_any_kind_of_group_may_use_the_coordinator_with_any_bytes(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    group, opaque = f"{peer.stem}-connect", bytes(range(256))
    me = joined(
        peer.wire,
        group,
        protocol_type="connect",
        protocols=[{"name": "sessioned", "metadata": opaque}, {"name": "other", "metadata": b""}],
    )
    assert (me["error_code"], me["protocol_name"], me["members"][0]["metadata"]) == (0, "sessioned", opaque)
    said = peer.quietly(
        "sync_group",
        5,
        group_id=group,
        generation_id=1,
        member_id=me["member_id"],
        protocol_type="connect",
        protocol_name="sessioned",
        assignments=[{"member_id": me["member_id"], "assignment": opaque}],
    )
    assert (said["error_code"], said["assignment"]) == (0, opaque)


def test_pitfall_38_commits_to_a_group_without_members_keep_their_text_and_unknown_partitions_are_errors(
    peer: Peer,
) -> None:
    topic = peer.topic("t")
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    assert commit(peer, group, topic, text="words") == 0
    assert (committed(peer, group, topic)["metadata"], committed(peer, group, topic)["committed_offset"]) == (
        "words",
        1,
    )
    assert commit(peer, group, topic, partition=9) == 3
    assert commit(peer, group, peer.stem + "-none") == 3
    assert (
        peer.quietly("offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[])[
            "topics"
        ]
        == []
    )
    peer.quietly("delete_topics", 5, topic_names=[topic], topics=[{"name": topic}], timeout=9000)
    until(lambda: committed(peer, group, topic)["committed_offset"] == -1, what="the offsets going with their topic")


def test_pitfall_39_coordinators_are_found_one_by_one_and_in_batches(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    assert peer.quietly("find_coordinator", 3, key="g", key_type=0)["node_id"] == 1
    said = peer.quietly("find_coordinator", 4, key_type=0, coordinator_keys=["a", "b"])["coordinators"]
    assert [(each["key"], each["node_id"], each["error_code"]) for each in said] == [("a", 1, 0), ("b", 1, 0)]


def test_pitfall_43_defaults_duplicates_and_the_requests_own_wish_to_create(peer: Peer) -> None:
    topic = peer.topic("t")
    name = f"{peer.stem}-default"
    ask = {"num_partitions": -1, "replication_factor": -1}
    made = peer.quietly("create_topics", 7, topics=[{"name": name} | ask], timeout=9000)["topics"][0]
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 1, 1)
    for only in (True, False):
        assert (
            peer.quietly("create_topics", 7, topics=[{"name": topic} | ask], validate_only=only, timeout=9000)[
                "topics"
            ][0]["error_code"]
            == 36
        )
    unknown = f"{peer.stem}-unwanted"
    assert (
        peer.quietly("metadata", 12, topics=[{"name": unknown}], allow_auto_topic_creation=False)["topics"][0][
            "error_code"
        ]
        == 3
    )
    assert unknown not in {each["name"] for each in peer.quietly("metadata", 12, topics=None)["topics"]}
    grown = peer.quietly(
        "create_partitions", 3, topics=[{"name": topic, "count": 3, "assignments": None}], timeout=9000
    )["results"]
    assert [(each["name"], each["error_code"]) for each in grown] == [(topic, 0)]
    until(
        lambda: len(peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["partitions"]) == 3,
        what="three partitions",
    )


def test_pitfall_44_all_settings_come_with_sources_and_synonyms_and_lists_are_appended_to(peer: Peer) -> None:
    topic = peer.topic("t", config={"retention.ms": "5000"})
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}

    def described() -> dict[str, Answer]:
        said = peer.quietly("describe_configs", 4, resources=[asked], include_synonyms=True)["results"][0]["configs"]
        return {each["name"]: each for each in said}

    found = described()
    assert len(found) >= 25
    assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == ("5000", 1)
    assert [each["name"] for each in found["segment.bytes"]["synonyms"]] == ["log.segment.bytes"]
    change = {"name": "cleanup.policy", "config_operation": 2, "value": "compact"}
    said = peer.quietly(
        "incremental_alter_configs", 1, resources=[{"resource_type": 2, "resource_name": topic, "configs": [change]}]
    )
    assert said["responses"][0]["error_code"] == 0
    until(lambda: described()["cleanup.policy"]["value"] == "delete,compact", what="the longer list")


def test_pitfall_45_minus_one_deletes_up_to_the_high_watermark(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(5)))

    def delete(offset: int) -> tuple[int, int]:
        said = peer.quietly(
            "delete_records",
            2,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
            timeout=9000,
        )
        part = said["topics"][0]["partitions"][0]
        return part["error_code"], part["low_watermark"]

    assert delete(-2)[0] == 1
    assert delete(6)[0] == 1
    assert delete(2) == (0, 2)
    assert delete(-1) == (0, 5)


def test_pitfall_46_groups_are_listed_by_state_and_kind(peer: Peer) -> None:
    topic = peer.topic("t")
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    assert commit(peer, group, topic) == 0

    def kinds(states: list[str], types: list[str]) -> dict[str, tuple[str, str]]:
        said = peer.quietly("list_groups", 5, states_filter=states, types_filter=types)["groups"]
        return {each["group_id"]: (each["group_state"], each["group_type"]) for each in said}

    assert kinds([], [])[group] == ("Empty", "classic")
    assert group in kinds(["Empty"], ["classic"])
    assert group not in kinds(["Stable"], [])
