"""Creates the topic, groups and transactions that requests_of_users.py is about."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from tests.support.acl_answers import DENIED
from tests.support.processes import until
from tests.support.requests_of_users import (
    CONSUMERS,
    GROUP,
    LEFT,
    MEMBER,
    OPEN,
    OWNER,
    PATTERNS,
    RECORDS,
    SHARERS,
    TOPIC,
    TRANSACTIONAL_ID,
)
from tests.support.wire_client import NO_ID, Answer, Wire

Fields = dict[str, Any]


def prepare(wire: Wire) -> uuid.UUID:
    """Create what the requests are about, as a user who may: the topic, groups, an open transaction; the topic's id."""
    ask = wire.call
    keep = {"name": "retention.ms", "value": "-1"}  # the records are old
    new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": [keep]}
    ask("create_topics", 5, topics=[new], timeout=20_000)
    for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
        until(partial(_is_found, wire, kind, key))
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": RECORDS}]}]
    until(lambda: not passes(ask("produce", 9, acks=-1, timeout=5000, topic_data=data)))
    commit = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    topics = [{"name": TOPIC, "partitions": [commit]}]
    member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    until(lambda: not passes(ask("offset_commit", 8, group_id=GROUP, topics=topics, **member)))
    _open_transaction(wire)
    _join(wire, "consumer_group_heartbeat", CONSUMERS)
    _join(wire, "share_group_heartbeat", SHARERS)
    offsets = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    until(lambda: not passes(ask("alter_share_group_offsets", 0, group_id=LEFT, topics=offsets)))
    topic_id: uuid.UUID = ask("metadata", 12, topics=[{"name": TOPIC}])["topics"][0]["topic_id"]
    until(
        lambda: _open_share_session(wire, topic_id, 1)["responses"], what="the share partition"
    )  # Kafka loads it first
    return topic_id


def _is_found(wire: Wire, kind: int, key: str) -> bool:
    return not passes(wire.call("find_coordinator", 4, key_type=kind, coordinator_keys=[key]))


def acknowledge(opener: Wire, wire: Wire, topic_id: uuid.UUID, api: str, version: int) -> Answer:
    """Acknowledge a record by a request of a share session that another user has opened, with ShareFetch or without."""
    assert not passes(_open_share_session(opener, topic_id, version))
    batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    return wire.call(api, version, share_session_epoch=1, **_of_share_session(topic_id, *batches))


def _open_share_session(wire: Wire, topic_id: uuid.UUID, version: int) -> Answer:
    return wire.call("share_fetch", version, share_session_epoch=0, **_of_share_session(topic_id))


def _of_share_session(topic_id: uuid.UUID, *acknowledgements: Fields) -> Fields:
    partition = {"partition_index": 0, "partition_max_bytes": 1, "acknowledgement_batches": [*acknowledgements]}
    named = {"group_id": SHARERS, "member_id": MEMBER, "topics": [{"topic_id": topic_id, "partitions": [partition]}]}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "max_records": 1, "batch_size": 1}
    return {**named, **limits, "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": []}


def assigned_by_pattern(wire: Wire, creator: Wire) -> set[str]:
    """Subscribe to every topic, one of which the user may not describe; the names of the topics that are assigned."""
    hidden = {"name": "hidden", "num_partitions": 1, "replication_factor": 1}
    creator.call("create_topics", 5, topics=[hidden], timeout=20_000)
    fields: Fields = {"group_id": PATTERNS, "member_id": MEMBER, "subscribed_topic_names": None}
    first: Fields = {"rebalance_timeout": 600_000, "subscribed_topic_regex": "[a-z].*", "topic_partitions": []}
    rest: Fields = {"rebalance_timeout": -1, "subscribed_topic_regex": None, "topic_partitions": None}
    answer = wire.call("consumer_group_heartbeat", 1, member_epoch=0, **fields, **first)
    names: set[str] = set()

    def has_partitions() -> bool:
        nonlocal answer
        answer = wire.call("consumer_group_heartbeat", 1, member_epoch=answer["member_epoch"], **fields, **rest)
        assert not passes(answer), answer
        topics = (answer["assignment"] or {}).get("topic_partitions", ())
        by_id = {topic["topic_id"]: topic["name"] for topic in creator.call("metadata", 12, topics=None)["topics"]}
        names.update(by_id[topic["topic_id"]] for topic in topics)
        return bool(names)

    until(has_partitions, timeout_s=60)
    return names


def create_by_metadata(wire: Wire, creator: Wire, topic: str) -> tuple[int, bool]:
    """Request the metadata of a topic that does not exist; the error code, and whether the topic is created."""
    answer = wire.call("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=True)

    def exists() -> bool:
        return not passes(creator.call("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False))

    code: int = answer["topics"][0]["error_code"]
    if code not in DENIED:
        until(exists, what=f"topic {topic}")
    return code, exists()


def create(wire: Wire, topic: str) -> uuid.UUID:
    """Create a topic unless it is there; its id."""
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    wire.call("create_topics", 5, topics=[new], timeout=20_000)
    found: list[Answer] = []

    def exists() -> bool:
        found[:] = wire.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)["topics"]
        return not found[0]["error_code"]

    until(exists, what=f"topic {topic}")
    topic_id: uuid.UUID = found[0]["topic_id"]
    return topic_id


def create_token(wire: Wire) -> bytes:
    """Create a delegation token of OWNER, as another user who may; its secret."""
    owner = {"principal_type": "User", "principal_name": OWNER}
    named = {f"owner_{key}": value for key, value in owner.items()}
    answer = wire.call("create_delegation_token", 3, **named, renewers=[], max_lifetime=-1)
    assert not passes(answer), answer
    until(lambda: wire.call("describe_delegation_token", 3, owners=[owner])["tokens"])
    secret: bytes = answer["hmac"]
    return secret


def delete(wire: Wire, topic: str, topic_id: uuid.UUID, version: int) -> Answer:
    """Delete a topic by its id, or by its name if that is NO_ID."""
    named = {"name": topic, "topic_id": NO_ID} if topic_id == NO_ID else {"name": None, "topic_id": topic_id}
    return wire.call("delete_topics", version, topic_names=[topic], topics=[named], timeout=20_000)


def passes(answer: Any) -> bool:
    """Whether a response has an error: here it is one that passes, because something is still being created."""
    if isinstance(answer, dict):
        errors = (answer.get("error_code"), answer.get("partition_error_code"))
        return any(errors) or any(map(passes, answer.values()))
    return isinstance(answer, list) and any(map(passes, answer))


def _open_transaction(wire: Wire) -> None:
    producer: Fields = {}

    def has_producer() -> bool:
        answer = wire.call(
            "init_producer_id", 4, transactional_id=OPEN, transaction_timeout=600_000, producer_id=-1, producer_epoch=-1
        )
        producer.update(
            v3_and_below_transactional_id=OPEN,
            v3_and_below_producer_id=answer["producer_id"],
            v3_and_below_producer_epoch=answer["producer_epoch"],
        )
        return not passes(answer)

    until(has_producer)
    topics = [{"name": TOPIC, "partitions": [0]}]
    until(lambda: not passes(wire.call("add_partitions_to_txn", 3, **producer, v3_and_below_topics=topics)))


def _join(wire: Wire, api: str, group: str) -> None:
    """Join a group, and send heartbeats until there are partitions."""
    epoch = 0

    def has_partitions() -> bool:
        nonlocal epoch
        fields: Fields = {"group_id": group, "member_id": MEMBER, "member_epoch": epoch, "rebalance_timeout": -1}
        if epoch == 0:
            fields |= {"subscribed_topic_names": [TOPIC], "topic_partitions": [], "rebalance_timeout": 600_000}
        answer = wire.call(api, 1, **{"subscribed_topic_names": None, "topic_partitions": None, **fields})
        if passes(answer):
            return False
        epoch = answer["member_epoch"]
        return bool(answer["assignment"] and answer["assignment"]["topic_partitions"])

    until(has_partitions, timeout_s=60)
