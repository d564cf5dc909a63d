"""The errors of every coordinator's APIs before `__consumer_offsets`, `__transaction_state` and `__share_group_state` exist.

With OTTLA_TEST_BROKER=kafka the same against the real Kafka, which must pass too (the file alone: other tests make these
topics exist).
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.broker.requests.registry import APIS
from ottla.core.error_codes import ErrorCode
from tests.conftest import Broker
from tests.support.wire_client import KEYS, Answer, Wire

pytestmark = pytest.mark.external
TOPIC, OTHER = "web", uuid.UUID(int=5)
MEMBER = {"group_id": "g", "member_id": "m"}
TOPIC_IDS_SINCE = 6
PRODUCER = {"transactional_id": "app", "producer_id": 1, "producer_epoch": 0}
PARTITIONS = [{"name": TOPIC, "topic_id": OTHER, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
NAMED = {"topic_name": TOPIC, "partitions": [0]}


def state(**fields: int) -> dict[str, Any]:
    """A request about the state of one share partition."""
    return {"group_id": "g", "topics": [{"topic_id": OTHER, "partitions": [{"partition": 0, **fields}]}]}


NOT_COORDINATOR: list[tuple[str, dict[str, Any]]] = [
    ("offset_commit", {**MEMBER, "generation_id_or_member_epoch": -1, "topics": PARTITIONS}),
    (
        "offset_fetch",
        {
            "group_id": "g",
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "groups": [{"group_id": "g", "topics": None}],
        },
    ),
    ("offset_delete", {"group_id": "g", "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]}),
    (
        "join_group",
        {
            "group_id": "g",
            "member_id": "",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    ("sync_group", {**MEMBER, "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}),
    ("heartbeat", {**MEMBER, "generation_id": 1}),
    ("leave_group", {**MEMBER, "members": [{"member_id": "m"}]}),
    ("describe_groups", {"groups": ["g"]}),
    ("delete_groups", {"groups_names": ["g"]}),
    (
        "consumer_group_heartbeat",
        {
            **MEMBER,
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
    ),
    ("consumer_group_describe", {"group_ids": ["g"]}),
    ("share_group_heartbeat", {**MEMBER, "member_epoch": 0, "subscribed_topic_names": [TOPIC]}),
    ("share_group_describe", {"group_ids": ["g"]}),
    ("describe_share_group_offsets", {"groups": [{"group_id": "g", "topics": None}]}),
    (
        "alter_share_group_offsets",
        {"group_id": "g", "topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}]},
    ),
    ("delete_share_group_offsets", {"group_id": "g", "topics": [{"topic_name": TOPIC}]}),
    ("initialize_share_group_state", state(state_epoch=0, start_offset=0)),
    ("read_share_group_state", state(leader_epoch=0)),
    ("write_share_group_state", state(state_epoch=0, leader_epoch=0, start_offset=0)),
    ("delete_share_group_state", state()),
    ("read_share_group_state_summary", state(leader_epoch=0)),
    (
        "init_producer_id",
        {"transactional_id": "app", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
    ),
    ("end_txn", {**PRODUCER, "committed": True}),
    ("describe_transactions", {"transactional_ids": ["app"]}),
    (
        "add_partitions_to_txn",
        {
            **{f"v3_and_below_{name}": value for name, value in PRODUCER.items()},
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            "transactions": [{**PRODUCER, "verify_only": True, "topics": [{"name": TOPIC, "partitions": [0]}]}],
        },
    ),
]


@pytest.fixture(scope="module")
def wire(broker: Broker) -> Wire:
    """A connection to a broker that has one topic."""
    wire = Wire(broker.port)
    new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
    assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] == 0
    return wire


def versions(api: str) -> range:
    served = APIS[KEYS[api]]  # type: ignore[index]
    return range(served.min_version, served.max_version + 1)


def errors(answer: Any) -> list[int]:
    """Every error code of an answer, as they come."""
    match answer:
        case dict():
            own = [value for key, value in answer.items() if key.endswith("error_code")]
            return own + [code for value in answer.values() for code in errors(value)]
        case list():
            return [code for each in answer for code in errors(each)]
        case _:
            return []


def test_offsets_of_a_transaction_have_no_coordinator_yet(wire: Wire) -> None:
    for version in versions("txn_offset_commit"):
        fields = {**PRODUCER, **MEMBER, "generation_id": -1, "topics": PARTITIONS}
        answer = wire.call("txn_offset_commit", version, **fields)
        by_id = version >= TOPIC_IDS_SINCE  # of a topic that is unknown, as it is found out first
        assert errors(answer) == [ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.COORDINATOR_NOT_AVAILABLE], version


@pytest.mark.parametrize("api", ["list_groups", "list_transactions"])
def test_lists_are_empty(wire: Wire, api: str) -> None:
    for version in versions(api):
        answer: Answer = wire.call(api, version)
        assert errors(answer) == [0], version
        assert not answer.get("groups", answer.get("transaction_states"))


@pytest.mark.parametrize(("api", "fields"), NOT_COORDINATOR)
def test_all_other_requests_find_no_coordinator_here(wire: Wire, api: str, fields: dict[str, Any]) -> None:
    for version in versions(api):
        found = [code for code in errors(wire.call(api, version, **fields)) if code]
        by_topic_id = (api, version) == ("offset_commit", 10)  # the ids of topics are resolved first
        assert found == [ErrorCode.UNKNOWN_TOPIC_ID if by_topic_id else ErrorCode.NOT_COORDINATOR], version


def test_named_share_partitions_have_no_offsets(wire: Wire) -> None:
    """After the tests above, because Kafka creates `__share_group_state` for it."""
    for version in versions("describe_share_group_offsets"):
        answer = wire.call("describe_share_group_offsets", version, groups=[{"group_id": "g", "topics": [NAMED]}])
        assert set(errors(answer)) == {0}, version
        (found,) = answer["groups"][0]["topics"][0]["partitions"]
        assert found["start_offset"] == -1


def test_offsets_are_added_to_no_transaction(wire: Wire) -> None:
    """The last, because Ottla creates `__consumer_offsets` for it."""
    for version in versions("add_offsets_to_txn"):
        answer = wire.call("add_offsets_to_txn", version, **PRODUCER, group_id="g")
        assert errors(answer) == [ErrorCode.NOT_COORDINATOR], version
