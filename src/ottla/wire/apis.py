"""Lists every API of Kafka's protocol: its key, its name, the known versions, and from which of them it is flexible.

"Flexible" (KIP-482) means compact lengths and tagged fields in the body, request header v2 and response header v1.
Known is not served: which versions this broker answers is the table in `broker/requests/registry.py`. A test holds this
table equal to kio's schema.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """The number that names an API in a request header. Keys 4 to 7 belong to APIs removed in Kafka 4.0."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


READ_COMMITTED: Final = 1
"""The `isolation_level` of a Fetch or ListOffsets request that leaves out open and aborted transactions."""


BETWEEN_BROKERS: Final = frozenset(
    {
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Requests that only brokers send. Followers send Fetch and OffsetForLeaderEpoch besides, which clients send too."""


class ApiInfo(NamedTuple):
    """The versions of an API, for the codecs. `flexible_since` is NEVER if no version is flexible."""

    name: str
    flexible_since: int
    min_version: int
    max_version: int


NEVER = 32767

API_INFO: MappingProxyType[ApiKey, ApiInfo] = MappingProxyType(
    {
        ApiKey.PRODUCE: ApiInfo("produce", 9, 3, 13),
        ApiKey.FETCH: ApiInfo("fetch", 12, 4, 18),
        ApiKey.LIST_OFFSETS: ApiInfo("list_offsets", 6, 1, 11),
        ApiKey.METADATA: ApiInfo("metadata", 9, 0, 13),
        ApiKey.OFFSET_COMMIT: ApiInfo("offset_commit", 8, 2, 10),
        ApiKey.OFFSET_FETCH: ApiInfo("offset_fetch", 6, 1, 10),
        ApiKey.FIND_COORDINATOR: ApiInfo("find_coordinator", 3, 0, 6),
        ApiKey.JOIN_GROUP: ApiInfo("join_group", 6, 0, 9),
        ApiKey.HEARTBEAT: ApiInfo("heartbeat", 4, 0, 4),
        ApiKey.LEAVE_GROUP: ApiInfo("leave_group", 4, 0, 5),
        ApiKey.SYNC_GROUP: ApiInfo("sync_group", 4, 0, 5),
        ApiKey.DESCRIBE_GROUPS: ApiInfo("describe_groups", 5, 0, 6),
        ApiKey.LIST_GROUPS: ApiInfo("list_groups", 3, 0, 5),
        ApiKey.SASL_HANDSHAKE: ApiInfo("sasl_handshake", NEVER, 0, 1),
        ApiKey.API_VERSIONS: ApiInfo("api_versions", 3, 0, 5),
        ApiKey.CREATE_TOPICS: ApiInfo("create_topics", 5, 2, 7),
        ApiKey.DELETE_TOPICS: ApiInfo("delete_topics", 4, 1, 6),
        ApiKey.DELETE_RECORDS: ApiInfo("delete_records", 2, 0, 2),
        ApiKey.INIT_PRODUCER_ID: ApiInfo("init_producer_id", 2, 0, 6),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiInfo("offset_for_leader_epoch", 4, 2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: ApiInfo("add_partitions_to_txn", 3, 0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: ApiInfo("add_offsets_to_txn", 3, 0, 4),
        ApiKey.END_TXN: ApiInfo("end_txn", 3, 0, 5),
        ApiKey.WRITE_TXN_MARKERS: ApiInfo("write_txn_markers", 1, 1, 2),
        ApiKey.TXN_OFFSET_COMMIT: ApiInfo("txn_offset_commit", 3, 0, 6),
        ApiKey.DESCRIBE_ACLS: ApiInfo("describe_acls", 2, 1, 3),
        ApiKey.CREATE_ACLS: ApiInfo("create_acls", 2, 1, 3),
        ApiKey.DELETE_ACLS: ApiInfo("delete_acls", 2, 1, 3),
        ApiKey.DESCRIBE_CONFIGS: ApiInfo("describe_configs", 4, 1, 4),
        ApiKey.ALTER_CONFIGS: ApiInfo("alter_configs", 2, 0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: ApiInfo("alter_replica_log_dirs", 2, 1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: ApiInfo("describe_log_dirs", 2, 1, 5),
        ApiKey.SASL_AUTHENTICATE: ApiInfo("sasl_authenticate", 2, 0, 2),
        ApiKey.CREATE_PARTITIONS: ApiInfo("create_partitions", 2, 0, 3),
        ApiKey.CREATE_DELEGATION_TOKEN: ApiInfo("create_delegation_token", 2, 1, 3),
        ApiKey.RENEW_DELEGATION_TOKEN: ApiInfo("renew_delegation_token", 2, 1, 2),
        ApiKey.EXPIRE_DELEGATION_TOKEN: ApiInfo("expire_delegation_token", 2, 1, 2),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiInfo("describe_delegation_token", 2, 1, 3),
        ApiKey.DELETE_GROUPS: ApiInfo("delete_groups", 2, 0, 3),
        ApiKey.ELECT_LEADERS: ApiInfo("elect_leaders", 2, 0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiInfo("incremental_alter_configs", 1, 0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiInfo("alter_partition_reassignments", 0, 0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiInfo("list_partition_reassignments", 0, 0, 0),
        ApiKey.OFFSET_DELETE: ApiInfo("offset_delete", NEVER, 0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiInfo("describe_client_quotas", 1, 0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: ApiInfo("alter_client_quotas", 1, 0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiInfo("describe_user_scram_credentials", 0, 0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiInfo("alter_user_scram_credentials", 0, 0, 0),
        ApiKey.VOTE: ApiInfo("vote", 0, 0, 2),
        ApiKey.BEGIN_QUORUM_EPOCH: ApiInfo("begin_quorum_epoch", 1, 0, 1),
        ApiKey.END_QUORUM_EPOCH: ApiInfo("end_quorum_epoch", 1, 0, 1),
        ApiKey.DESCRIBE_QUORUM: ApiInfo("describe_quorum", 0, 0, 2),
        ApiKey.ALTER_PARTITION: ApiInfo("alter_partition", 2, 2, 3),
        ApiKey.UPDATE_FEATURES: ApiInfo("update_features", 0, 0, 2),
        ApiKey.ENVELOPE: ApiInfo("envelope", 0, 0, 0),
        ApiKey.FETCH_SNAPSHOT: ApiInfo("fetch_snapshot", 0, 0, 1),
        ApiKey.DESCRIBE_CLUSTER: ApiInfo("describe_cluster", 0, 0, 2),
        ApiKey.DESCRIBE_PRODUCERS: ApiInfo("describe_producers", 0, 0, 0),
        ApiKey.BROKER_REGISTRATION: ApiInfo("broker_registration", 0, 0, 4),
        ApiKey.BROKER_HEARTBEAT: ApiInfo("broker_heartbeat", 0, 0, 2),
        ApiKey.UNREGISTER_BROKER: ApiInfo("unregister_broker", 0, 0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: ApiInfo("describe_transactions", 0, 0, 0),
        ApiKey.LIST_TRANSACTIONS: ApiInfo("list_transactions", 0, 0, 2),
        ApiKey.ALLOCATE_PRODUCER_IDS: ApiInfo("allocate_producer_ids", 0, 0, 0),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiInfo("consumer_group_heartbeat", 0, 0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ApiInfo("consumer_group_describe", 0, 0, 1),
        ApiKey.CONTROLLER_REGISTRATION: ApiInfo("controller_registration", 0, 0, 0),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiInfo("get_telemetry_subscriptions", 0, 0, 0),
        ApiKey.PUSH_TELEMETRY: ApiInfo("push_telemetry", 0, 0, 0),
        ApiKey.ASSIGN_REPLICAS_TO_DIRS: ApiInfo("assign_replicas_to_dirs", 0, 0, 0),
        ApiKey.LIST_CONFIG_RESOURCES: ApiInfo("list_config_resources", 0, 0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiInfo("describe_topic_partitions", 0, 0, 0),
        ApiKey.SHARE_GROUP_HEARTBEAT: ApiInfo("share_group_heartbeat", 1, 1, 1),
        ApiKey.SHARE_GROUP_DESCRIBE: ApiInfo("share_group_describe", 1, 1, 1),
        ApiKey.SHARE_FETCH: ApiInfo("share_fetch", 1, 1, 2),
        ApiKey.SHARE_ACKNOWLEDGE: ApiInfo("share_acknowledge", 1, 1, 2),
        ApiKey.ADD_RAFT_VOTER: ApiInfo("add_raft_voter", 0, 0, 1),
        ApiKey.REMOVE_RAFT_VOTER: ApiInfo("remove_raft_voter", 0, 0, 0),
        ApiKey.UPDATE_RAFT_VOTER: ApiInfo("update_raft_voter", 0, 0, 0),
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: ApiInfo("initialize_share_group_state", 0, 0, 0),
        ApiKey.READ_SHARE_GROUP_STATE: ApiInfo("read_share_group_state", 0, 0, 0),
        ApiKey.WRITE_SHARE_GROUP_STATE: ApiInfo("write_share_group_state", 0, 0, 1),
        ApiKey.DELETE_SHARE_GROUP_STATE: ApiInfo("delete_share_group_state", 0, 0, 0),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: ApiInfo("read_share_group_state_summary", 0, 0, 1),
        ApiKey.STREAMS_GROUP_HEARTBEAT: ApiInfo("streams_group_heartbeat", 0, 0, 0),
        ApiKey.STREAMS_GROUP_DESCRIBE: ApiInfo("streams_group_describe", 0, 0, 0),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiInfo("describe_share_group_offsets", 0, 0, 1),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiInfo("alter_share_group_offsets", 0, 0, 0),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiInfo("delete_share_group_offsets", 0, 0, 0),
    }
)
