"""Makes requests of each API about one topic, group and transactional id, for users who may do some things or none.

Each case is a request that has no effect a later one would notice, however often any user sends it, so that two
brokers are in the same state whatever was allowed before.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from ottla.core.ids import id_text
from ottla.records.batch import TRANSACTIONAL
from tests.support.acl_users import PREFIX
from tests.support.batches import batch, numbered
from tests.support.wire_client import NO_ID

TOPIC, MISSING, NEW, GROUP, CONSUMERS, SHARERS, LEFT, STATES, PATTERNS, TRANSACTIONAL_ID, OPEN = (
    f"{PREFIX}{name}"
    for name in (
        "topic",
        "missing",
        "new",
        "group",
        "consumers",
        "sharers",
        "left",
        "states",
        "patterns",
        "transaction",
        "open",
    )
)
TOPIC_ID, UNKNOWN_ID = uuid.UUID(int=1), uuid.UUID(int=77)
MEMBER = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
NODE_ID = 1
SHARE_KEY = "a share partition"
"""Stands for the key of one."""
SECRET = b"the secret of a token"
"""Stands for that of a delegation token of OWNER."""
OWNER = f"{PREFIX}owner"
"""A user who sends nothing, and of whom others may create and see tokens."""
Fields = dict[str, Any]
SETTINGS = {
    "delegation.token.secret.key": "the key of the tokens",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
    "group.share.max.session.timeout.ms": "600000",
    "group.share.session.timeout.ms": "600000",
}
"""Settings of a broker that has delegation tokens, and whose groups keep their members while many requests are sent."""


class Case(NamedTuple):
    """A request of one API, the same in each version from `since` to `until`."""

    api: str
    label: str
    fields: Fields  # TOPIC_ID stands for the id of the topic, SECRET for that of the token
    since: int = 0
    until: int = 99

    def __str__(self) -> str:
        return f"{self.api} {self.label}".strip()


RECORDS = batch(numbered(1))
TRANSACTIONAL_RECORDS = batch(numbered(1), attributes=TRANSACTIONAL, producer_id=99, producer_epoch=0, base_sequence=0)


def _named(**more: Any) -> list[Fields]:
    """The topic and one that does not exist, as every version names them."""
    return [
        {"name": name, "topic": name, "topic_name": name, "topic_id": each, **more}
        for name, each in ((TOPIC, TOPIC_ID), (MISSING, UNKNOWN_ID))
    ]


def _produce(records: bytes, transactional_id: str | None = None) -> Fields:
    data = _named(partition_data=[{"index": 0, "records": records}])
    return {"acks": -1, "timeout": 5000, "transactional_id": transactional_id, "topic_data": data}


def _fetch(replica_id: int = -1) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1,
    }
    return {
        "replica_id": replica_id,
        "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": _named(partitions=[partition]),
    }


def _commits() -> list[Fields]:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    return _named(partitions=[partition])


def _config(kind: int, name: str, *configs: Fields, **more: Any) -> Fields:
    return {"resource_type": kind, "resource_name": name, "configs": list(configs), **more}


def _resources(*configs: Fields) -> list[Fields]:
    return [
        _config(2, TOPIC, *configs, configuration_keys=["retention.ms"]),
        _config(2, MISSING, *configs, configuration_keys=["retention.ms"]),
        _config(4, str(NODE_ID), configuration_keys=["log.retention.ms"]),
        _config(8, str(NODE_ID), configuration_keys=["org.apache.kafka"]),
        _config(16, "metrics", configuration_keys=["interval.ms"]),
        _config(32, GROUP, configuration_keys=["consumer.session.timeout.ms"]),
    ]


_KEEP = {"name": "retention.ms", "value": "604800000", "config_operation": 0}


_NO_USERS = [{"principal_type": "Group", "principal_name": "none"}]
"""Renewers that no token may have: it is refused after the authorizer is asked."""


def _state_topics(**partition: Any) -> list[Fields]:
    return [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, **partition}]}]


def _share_fetch(epoch: int) -> Fields:
    partition = {"partition_index": 0, "partition_max_bytes": 1, "acknowledgement_batches": []}
    return {
        "group_id": SHARERS,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "max_records": 1,
        "batch_size": 1,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [] if epoch else [{"topic_id": TOPIC_ID, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }


CASES: tuple[Case, ...] = (
    Case("produce", "plain", _produce(RECORDS), since=3),
    Case("produce", "transactional", _produce(TRANSACTIONAL_RECORDS, TRANSACTIONAL_ID), since=3),
    Case("produce", "transactional without id", _produce(TRANSACTIONAL_RECORDS), since=3),
    Case("fetch", "as a consumer", _fetch()),
    Case("fetch", "as a replica", _fetch(NODE_ID)),
    Case(
        "list_offsets",
        "",
        {
            "replica_id": -1,
            "topics": _named(partitions=[{"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}]),
        },
    ),
    Case(
        "list_offsets",
        "as a replica",
        {
            "replica_id": NODE_ID,
            "topics": _named(partitions=[{"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}]),
        },
    ),
    Case(
        "metadata",
        "all",
        {"topics": None, "include_cluster_authorized_operations": True, "include_topic_authorized_operations": True},
        since=1,
    ),
    Case("metadata", "all by an empty list", {"topics": []}, until=0),
    Case(
        "metadata",
        "named",
        {
            "topics": [{"name": TOPIC}, {"name": MISSING}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        since=4,
    ),
    Case("metadata", "named topic", {"topics": [{"name": TOPIC}]}, until=3),
    Case(
        "metadata",
        "by id",
        {
            "topics": [{"name": None, "topic_id": TOPIC_ID}, {"name": None, "topic_id": UNKNOWN_ID}],
            "include_topic_authorized_operations": True,
            "allow_auto_topic_creation": False,
        },
        since=12,
    ),
    Case("metadata", "creating", {"topics": [{"name": f"{PREFIX}illegal name"}], "allow_auto_topic_creation": True}),
    Case(
        "offset_commit",
        "",
        {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time": -1,
            "topics": _commits(),
        },
    ),
    Case(
        "offset_fetch",
        "named",
        {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}, {"name": MISSING, "partition_indexes": [0]}],
            "groups": [
                {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": _named(partition_indexes=[0])}
            ],
        },
    ),
    Case(
        "offset_fetch",
        "all",
        {
            "group_id": GROUP,
            "topics": None,
            "groups": [{"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": None}],
        },
        since=2,
    ),
    Case("find_coordinator", "group", {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]}),
    Case(
        "find_coordinator",
        "transaction",
        {"key": TRANSACTIONAL_ID, "key_type": 1, "coordinator_keys": [TRANSACTIONAL_ID]},
        since=1,
    ),
    Case("find_coordinator", "share", {"key_type": 2, "coordinator_keys": [SHARE_KEY]}, since=4),
    Case(
        "join_group",
        "",
        {
            "group_id": GROUP,
            "session_timeout": 1,
            "rebalance_timeout": 1,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    Case("heartbeat", "", {"group_id": GROUP, "generation_id": 1, "member_id": "m"}),
    Case(
        "leave_group",
        "",
        {"group_id": GROUP, "member_id": "m", "members": [{"member_id": "m", "group_instance_id": None}]},
    ),
    Case(
        "sync_group",
        "",
        {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
    ),
    Case(
        "sync_group",
        "without protocol",
        {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": None,
            "protocol_name": None,
            "assignments": [],
        },
        since=5,
    ),
    Case("describe_groups", "", {"groups": [GROUP, f"{PREFIX}none"], "include_authorized_operations": True}),
    Case("list_groups", "", {"states_filter": [], "types_filter": []}),
    Case(
        "create_topics",
        "",
        {
            "topics": [
                {"name": NEW, "num_partitions": 1, "replication_factor": 1},
                {"name": TOPIC, "num_partitions": 1, "replication_factor": 1},
            ],
            "timeout": 5000,
            "validate_only": True,
        },
    ),
    Case(
        "delete_topics",
        "missing",
        {
            "topic_names": [MISSING],
            "topics": [{"name": MISSING, "topic_id": NO_ID}, {"name": None, "topic_id": UNKNOWN_ID}],
            "timeout": 5000,
        },
    ),
    Case(
        "delete_records",
        "",
        {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in (TOPIC, MISSING)
            ],
            "timeout": 5000,
        },
    ),
    Case(
        "init_producer_id",
        "idempotent",
        {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
    ),
    Case(
        "init_producer_id",
        "transactional",
        {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1},
    ),
    Case(
        "offset_for_leader_epoch",
        "",
        {
            "replica_id": -1,
            "topics": [
                {"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
                for name in (TOPIC, MISSING)
            ],
        },
    ),
    Case(
        "add_partitions_to_txn",
        "",
        {
            "transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_producer_id": 99,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            "transactions": [
                {
                    "transactional_id": TRANSACTIONAL_ID,
                    "producer_id": 99,
                    "producer_epoch": 0,
                    "verify_only": False,
                    "topics": [{"name": TOPIC, "partitions": [0]}],
                }
            ],
        },
    ),
    Case(
        "add_partitions_to_txn",
        "a missing topic",
        {
            "v3_and_below_transactional_id": TRANSACTIONAL_ID,
            "v3_and_below_producer_id": 99,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}, {"name": MISSING, "partitions": [0]}],
            "transactions": [],
        },
        until=3,
    ),
    Case(
        "add_offsets_to_txn",
        "",
        {"transactional_id": TRANSACTIONAL_ID, "producer_id": 99, "producer_epoch": 0, "group_id": GROUP},
    ),
    Case(
        "end_txn",
        "",
        {"transactional_id": TRANSACTIONAL_ID, "producer_id": 99, "producer_epoch": 0, "committed": False},
    ),
    Case(
        "write_txn_markers",
        "",
        {
            "markers": [
                {
                    "producer_id": 99,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": [{"name": MISSING, "partition_indexes": [0]}],
                }
            ]
        },
    ),
    Case(
        "txn_offset_commit",
        "",
        {
            "transactional_id": TRANSACTIONAL_ID,
            "group_id": GROUP,
            "producer_id": 99,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": _commits(),
        },
    ),
    Case(
        "describe_acls",
        "",
        {
            "resource_type_filter": 2,
            "resource_name_filter": "none",
            "pattern_type_filter": 3,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        },
    ),
    Case(
        "create_acls",
        "",
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": "",
                    "resource_pattern_type": 3,
                    "principal": "User:none",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
    ),
    Case(
        "delete_acls",
        "",
        {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": "none",
                    "pattern_type_filter": 3,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
    ),
    Case(
        "describe_configs", "", {"resources": _resources(), "include_synonyms": False, "include_documentation": False}
    ),
    Case(
        "alter_configs",
        "",
        {"resources": _resources(_KEEP)[:2] + _resources()[2:3] + _resources()[4:], "validate_only": True},
    ),
    Case(
        "incremental_alter_configs", "", {"resources": _resources(_KEEP)[:2] + _resources()[2:], "validate_only": True}
    ),
    Case("alter_replica_log_dirs", "", {"dirs": [{"path": "/none", "topics": [{"name": TOPIC, "partitions": [0]}]}]}),
    Case("describe_log_dirs", "", {"topics": [{"topic": TOPIC, "partitions": [0]}]}),
    Case(
        "create_partitions",
        "",
        {
            "topics": [{"name": name, "count": 2, "assignments": None} for name in (TOPIC, MISSING)],
            "timeout": 5000,
            "validate_only": True,
        },
    ),
    Case("create_delegation_token", "for itself", {"renewers": _NO_USERS, "max_lifetime": -1}, until=2),
    Case(
        "create_delegation_token",
        "",
        {"owner_principal_type": "User", "owner_principal_name": OWNER, "renewers": _NO_USERS, "max_lifetime": -1},
        since=3,
    ),
    Case("renew_delegation_token", "", {"hmac": SECRET, "renew_period": -1}),
    Case("expire_delegation_token", "", {"hmac": SECRET, "expiry_time_period": -1}),
    Case("describe_delegation_token", "", {"owners": [{"principal_type": "User", "principal_name": OWNER}]}),
    Case("delete_groups", "", {"groups_names": [f"{PREFIX}none"]}),
    Case(
        "elect_leaders",
        "",
        {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 5000},
    ),
    Case(
        "alter_partition_reassignments",
        "",
        {"timeout": 5000, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}]},
    ),
    Case("list_partition_reassignments", "", {"timeout": 5000, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    Case(
        "offset_delete",
        "",
        {
            "group_id": f"{PREFIX}none",
            "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in (TOPIC, MISSING)],
        },
    ),
    Case(
        "offset_delete",
        "committed",
        {
            "group_id": GROUP,
            "topics": [{"name": name, "partitions": [{"partition_index": 1}]} for name in (TOPIC, MISSING)],
        },
    ),
    Case("describe_client_quotas", "", {"components": [], "strict": False}),
    Case(
        "alter_client_quotas",
        "",
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": f"{PREFIX}none"}],
                    "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}],
                }
            ],
            "validate_only": True,
        },
    ),
    Case("describe_user_scram_credentials", "", {"users": [{"name": "none"}]}),
    Case(
        "alter_user_scram_credentials", "", {"deletions": [{"name": f"{PREFIX}none", "mechanism": 1}], "upsertions": []}
    ),
    Case(
        "describe_quorum",
        "",
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    Case(
        "update_features",
        "",
        {
            "timeout": 5000,
            "feature_updates": [
                {"feature": "none", "max_version_level": 1, "upgrade_type": 1, "allow_downgrade": False}
            ],
            "validate_only": True,
        },
    ),
    Case(
        "describe_cluster",
        "",
        {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": True},
    ),
    Case(
        "describe_producers",
        "",
        {"topics": [{"name": name, "partition_indexes": [0]} for name in (TOPIC, MISSING, f"{PREFIX}illegal name")]},
    ),
    Case("unregister_broker", "", {"broker_id": 99}),
    Case("describe_transactions", "", {"transactional_ids": [TRANSACTIONAL_ID, OPEN]}),
    Case(
        "list_transactions",
        "",
        {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None},
    ),
    Case(
        "consumer_group_heartbeat",
        "",
        {
            "group_id": f"{PREFIX}none",
            "member_id": MEMBER,
            "member_epoch": 5,
            "rebalance_timeout": 1000,
            "subscribed_topic_names": [TOPIC, MISSING],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
    ),
    Case(
        "consumer_group_heartbeat",
        "without topics",
        {
            "group_id": f"{PREFIX}none",
            "member_id": MEMBER,
            "member_epoch": 5,
            "rebalance_timeout": 1000,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
    ),
    Case(
        "consumer_group_describe",
        "",
        {"group_ids": [CONSUMERS, f"{PREFIX}none"], "include_authorized_operations": True},
    ),
    Case("list_config_resources", "", {"resource_types": []}),
    Case(
        "describe_topic_partitions",
        "named",
        {"topics": [{"name": TOPIC}, {"name": MISSING}], "response_partition_limit": 100, "cursor": None},
    ),
    Case("describe_topic_partitions", "all", {"topics": [], "response_partition_limit": 100, "cursor": None}),
    Case(
        "share_group_heartbeat",
        "",
        {
            "group_id": f"{PREFIX}none",
            "member_id": MEMBER,
            "member_epoch": 5,
            "rack_id": None,
            "subscribed_topic_names": [TOPIC, MISSING],
        },
    ),
    Case(
        "share_group_heartbeat",
        "without topics",
        {
            "group_id": f"{PREFIX}none",
            "member_id": MEMBER,
            "member_epoch": 5,
            "rack_id": None,
            "subscribed_topic_names": None,
        },
    ),
    Case("share_group_describe", "", {"group_ids": [SHARERS, f"{PREFIX}none"], "include_authorized_operations": True}),
    Case("share_fetch", "no session", _share_fetch(5)),
    Case("share_fetch", "a new session", _share_fetch(0)),
    Case(
        "share_acknowledge",
        "no session",
        {"group_id": SHARERS, "member_id": MEMBER, "share_session_epoch": 5, "is_renew_ack": False, "topics": []},
    ),
    Case(
        "initialize_share_group_state", "", {"group_id": STATES, "topics": _state_topics(state_epoch=0, start_offset=0)}
    ),
    Case("read_share_group_state", "", {"group_id": STATES, "topics": _state_topics(leader_epoch=0)}),
    Case(
        "write_share_group_state",
        "",
        {
            "group_id": STATES,
            "topics": _state_topics(
                state_epoch=0, leader_epoch=0, start_offset=0, delivery_complete_count=-1, state_batches=[]
            ),
        },
    ),
    Case("delete_share_group_state", "", {"group_id": STATES, "topics": _state_topics()}),
    Case("read_share_group_state_summary", "", {"group_id": STATES, "topics": _state_topics(leader_epoch=0)}),
    Case(
        "describe_share_group_offsets",
        "named",
        {
            "groups": [
                {"group_id": SHARERS, "topics": [{"topic_name": name, "partitions": [0]} for name in (TOPIC, MISSING)]}
            ]
        },
    ),
    Case("describe_share_group_offsets", "all", {"groups": [{"group_id": SHARERS, "topics": None}]}),
    Case("describe_share_group_offsets", "all, without members", {"groups": [{"group_id": LEFT, "topics": None}]}),
    Case(
        "alter_share_group_offsets",
        "",
        {
            "group_id": f"{PREFIX}none",
            "topics": [
                {"topic_name": name, "partitions": [{"partition_index": 9, "start_offset": 0}]}
                for name in (TOPIC, MISSING)
            ],
        },
    ),
    Case(
        "delete_share_group_offsets",
        "",
        {"group_id": SHARERS, "topics": [{"topic_name": name} for name in (TOPIC, MISSING)]},
    ),
    Case("delete_share_group_offsets", "without members", {"group_id": LEFT, "topics": [{"topic_name": MISSING}]}),
)

BETWEEN_BROKERS = (
    Case("alter_partition", "", {"broker_id": NODE_ID, "broker_epoch": -1, "topics": []}),
    Case("envelope", "", {"request_data": b"", "request_principal": None, "client_host_address": b""}),
)
"""Requests that brokers send to the controller, which a broker of Kafka does not serve."""


def fields_of(case: Case, topic_id: uuid.UUID, secret: bytes) -> Fields:
    """Return the fields of a request, with the id of the topic and the secret of the token."""

    def with_id(value: Any) -> Any:
        match value:
            case dict():
                return {key: with_id(each) for key, each in value.items()}
            case list():
                return [with_id(each) for each in value]
            case _ if value == TOPIC_ID:
                return topic_id
            case _ if value == SECRET:
                return secret
            case _ if value == SHARE_KEY:
                return f"{GROUP}:{id_text(topic_id)}:0"
            case _:
                return value

    fields: Fields = with_id(case.fields)
    return fields
