"""Lists every API that this broker serves. The ApiVersions response is made from the table of clients' APIs.

A row names the handler's module in `broker/handlers/`, which is imported when the first such request arrives: forty
modules of message classes would otherwise cost half of the start-up time. A test holds each row equal to the head of
its module.
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from ottla.broker.requests.handler import AnyHandler, Row
from ottla.broker.requests.loaded_api import LoadedApi
from ottla.wire.apis import ApiKey


class Api(NamedTuple):
    """One API: the versions served, and the module of its handler."""

    key: ApiKey
    min_version: int
    max_version: int
    module: str
    advertised_min_version: int | None = None  # advertised in place of min_version: Produce, KAFKA-18659
    waits_for_members: bool = False  # is answered when other clients have sent theirs
    controller_only: bool = False  # other brokers forward it (broker/remote/controller_channel.py)

    def handler(self) -> AnyHandler:
        """Import the module and return its handler."""
        handler: AnyHandler = importlib.import_module(f"ottla.broker.handlers.{self.module}").HANDLER
        assert handler.key == self.key, f"{self.module} handles another API than its row"
        return handler

    def load(self) -> LoadedApi:
        """Import the handler and take it apart for the driver."""
        return self.handler().load(
            Row(self.min_version, self.max_version, self.controller_only, self.waits_for_members)
        )


def _rows(*rows: Api) -> dict[ApiKey, Api]:
    table = {row.key: row for row in rows}
    assert len(table) == len(rows), "an API is handled twice"
    return table


APIS: dict[ApiKey, Api] = _rows(
    Api(ApiKey.PRODUCE, 3, 13, "produce", advertised_min_version=0),
    Api(ApiKey.FETCH, 4, 18, "fetch"),
    Api(ApiKey.LIST_OFFSETS, 1, 11, "list_offsets"),
    Api(ApiKey.METADATA, 0, 13, "metadata"),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, "offset_commit"),
    Api(ApiKey.OFFSET_FETCH, 1, 10, "offset_fetch"),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, "find_coordinator"),
    Api(ApiKey.JOIN_GROUP, 0, 9, "join_group", waits_for_members=True),
    Api(ApiKey.HEARTBEAT, 0, 4, "heartbeat"),
    Api(ApiKey.LEAVE_GROUP, 0, 5, "leave_group"),
    Api(ApiKey.SYNC_GROUP, 0, 5, "sync_group", waits_for_members=True),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, "describe_groups"),
    Api(ApiKey.LIST_GROUPS, 0, 5, "list_groups"),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, "sasl_handshake"),
    Api(ApiKey.API_VERSIONS, 0, 5, "api_versions"),
    Api(ApiKey.CREATE_TOPICS, 2, 7, "create_topics", controller_only=True),
    Api(ApiKey.DELETE_TOPICS, 1, 6, "delete_topics", controller_only=True),
    Api(ApiKey.DELETE_RECORDS, 0, 2, "delete_records"),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, "init_producer_id"),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, "offset_for_leader_epoch"),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, "add_partitions_to_txn"),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, "add_offsets_to_txn"),
    Api(ApiKey.END_TXN, 0, 5, "end_txn"),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, "write_txn_markers"),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, "txn_offset_commit"),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, "describe_acls"),
    Api(ApiKey.CREATE_ACLS, 1, 3, "create_acls", controller_only=True),
    Api(ApiKey.DELETE_ACLS, 1, 3, "delete_acls", controller_only=True),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, "describe_configs"),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, "alter_configs"),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, "alter_replica_log_dirs"),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, "describe_log_dirs"),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, "sasl_authenticate"),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, "create_partitions", controller_only=True),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, "create_delegation_token", controller_only=True),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, "renew_delegation_token", controller_only=True),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, "expire_delegation_token", controller_only=True),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, "describe_delegation_token"),
    Api(ApiKey.DELETE_GROUPS, 0, 3, "delete_groups"),
    Api(ApiKey.ELECT_LEADERS, 0, 2, "elect_leaders", controller_only=True),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, "incremental_alter_configs"),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, "alter_partition_reassignments", controller_only=True),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, "list_partition_reassignments", controller_only=True),
    Api(ApiKey.OFFSET_DELETE, 0, 0, "offset_delete"),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, "describe_client_quotas"),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, "alter_client_quotas", controller_only=True),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, "describe_user_scram_credentials"),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, "alter_user_scram_credentials", controller_only=True),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, "describe_quorum"),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, "update_features"),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, "describe_cluster"),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, "describe_producers"),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, "unregister_broker"),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, "describe_transactions"),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, "list_transactions"),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, "consumer_group_heartbeat"),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, "consumer_group_describe"),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, "get_telemetry_subscriptions"),
    Api(ApiKey.PUSH_TELEMETRY, 0, 0, "push_telemetry"),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, "list_config_resources"),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, "describe_topic_partitions"),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, "share_group_heartbeat"),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, "share_group_describe"),
    Api(ApiKey.SHARE_FETCH, 1, 2, "share_fetch", waits_for_members=True),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, "share_acknowledge"),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, "initialize_share_group_state"),
    Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, "read_share_group_state"),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, "write_share_group_state"),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, "delete_share_group_state"),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, "read_share_group_state_summary"),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, "describe_share_group_offsets"),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, "alter_share_group_offsets"),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, "delete_share_group_offsets"),
)

TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""Advertised where `ottla.client.metrics.enable` asks for it, as by a Kafka with a reporter for them: newer clients
push to who advertises them."""

INTER_BROKER_APIS: dict[ApiKey, Api] = _rows(
    Api(ApiKey.ALTER_PARTITION, 2, 3, "alter_partition"), Api(ApiKey.ENVELOPE, 0, 0, "envelope")
)
"""The APIs between brokers. As in Kafka these APIs are not advertised to clients."""

ADMINISTRATIVE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
    }
)
"""The APIs whose changes the driver has recorded in the security audit log (audited_changes.py)."""
