"""Every administrative change is in the security audit log of one broker, and no secret is in it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.requests.audited_changes import CHANGES, Change
from ottla.broker.requests.registry import ADMINISTRATIVE, APIS
from ottla.client.connection import Connection
from ottla.core.settings import AlterConfigOpType
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import request_to
from ottla.wire.apis import ApiKey
from ottla.wire.generated.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    EntityData,
    OpData,
)
from ottla.wire.generated.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.generated.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ottla.wire.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.generated.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.requests import bare_services

PATH = Path("/audit/audit.log")
TOPIC, BROKER, LOGGER = 2, 4, 8
LOGGER_NAME = "ottla.controller.controller"
audited = pytest.mark.options({"ottla.audit.log.path": str(PATH)})


async def _entries(cluster: TestCluster) -> list[dict[str, Any]]:
    """All entries, of all brokers, each without its time, and sorted by broker."""
    found = []
    for node_id in sorted(cluster.brokers):
        audit_log = cluster.services(node_id).audit_log
        assert audit_log is not None
        await audit_log.close()
        files = cluster.files(node_id)
        if files.exists(PATH):
            file = files.open(PATH)
            found += [json.loads(line) for line in file.read_at(0, file.size()).splitlines()]
    return found


async def _connect_to_another_than_the_controller(cluster: TestCluster) -> tuple[int, Connection]:
    node_id = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    return node_id, await cluster.services(node_id).nodes.connect_to(node_id)


@audited
@pytest.mark.simulated_time
async def test_each_change_has_one_entry_in_the_log_of_the_broker_that_made_it(cluster: TestCluster) -> None:
    controller = cluster.controller
    node_id, connection = await _connect_to_another_than_the_controller(cluster)
    configs = [CreatableTopicConfig(name="retention.ms", value="86400000")]
    topics = [
        CreatableTopic(name="web", num_partitions=3, replication_factor=2, configs=configs),
        CreatableTopic(name="none", num_partitions=0, replication_factor=2),
    ]
    await connection.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=9_000), timeout_s=20)
    only_validated = CreateTopicsRequest(topics=[CreatableTopic(name="x")], timeout_ms=9_000, validate_only=True)
    await connection.request(ApiKey.CREATE_TOPICS, only_validated, timeout_s=20)
    await cluster.known_everywhere("web")
    altered = [
        AlterableConfig(name="retention.ms", config_operation=AlterConfigOpType.DELETE, value=None),
        AlterableConfig(name="cleanup.policy", config_operation=AlterConfigOpType.APPEND, value="compact"),
    ]
    level = [AlterableConfig(name=LOGGER_NAME, config_operation=AlterConfigOpType.DELETE, value=None)]
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=TOPIC, resource_name="web", configs=altered),
            AlterConfigsResource(resource_type=LOGGER, resource_name=str(node_id), configs=level),
        ]
    )
    await connection.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, timeout_s=20)
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="web", count=4, assignments=None)], timeout_ms=9_000
    )
    await connection.request(ApiKey.CREATE_PARTITIONS, more, timeout_s=20)
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="web")], timeout_ms=9_000)
    await connection.request(ApiKey.DELETE_TOPICS, delete, timeout_s=20)
    found = [
        (each["broker"], each["api"], each["resource_type"], each["resource"], each.get("error"), each.get("details"))
        for each in await _entries(cluster)
        if each["event"] == "changed"
    ]
    own = [entry for entry in found if entry[0] == node_id]
    assert own == [
        (node_id, "IncrementalAlterConfigs", "BROKER_LOGGER_CONFIG", str(node_id), None, {f"-{LOGGER_NAME}": ""})
    ]
    details = {"partitions": "3", "retention.ms": "86400000"}
    assert [entry for entry in found if entry[0] != node_id] == [
        (controller, "CreateTopics", "TOPIC", "web", None, details),
        (controller, "CreateTopics", "TOPIC", "none", "INVALID_PARTITIONS", {"partitions": "0"}),
        (
            controller,
            "IncrementalAlterConfigs",
            "TOPIC_CONFIG",
            "web",
            None,
            {"-retention.ms": "", "+cleanup.policy": "compact"},
        ),
        (controller, "CreatePartitions", "TOPIC", "web", None, {"partitions": "4"}),
        (controller, "DeleteTopics", "TOPIC", "web", None, None),
    ]


@audited
@pytest.mark.simulated_time
async def test_a_long_request_has_an_entry_for_each_topic_with_the_client_that_sent_it(cluster: TestCluster) -> None:
    node_id, connection = await _connect_to_another_than_the_controller(cluster)
    topics = [CreatableTopic(name=f"long-{index}", num_partitions=1, replication_factor=1) for index in range(400)]
    await connection.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=9_000), timeout_s=20)
    found = [entry for entry in await _entries(cluster) if entry["event"] == "changed"]
    assert [entry["resource"] for entry in found] == [f"long-{index}" for index in range(400)]
    listener = cluster.services(node_id).nodes
    assert {entry["principal"] for entry in found} == {"User:ANONYMOUS"} and listener is not None


def _changes(key: ApiKey, body: Any, response: Any) -> list[Change]:
    request = request_to(bare_services(), 1)
    request.is_forwarded = True
    return list(CHANGES[key](request, body, response))


def test_the_apis_that_the_driver_records_are_those_of_which_the_changes_can_be_found() -> None:
    assert set(CHANGES) == ADMINISTRATIVE


def test_every_api_that_changes_the_cluster_is_recorded() -> None:
    of_data = {"PRODUCE", "OFFSET_COMMIT", "DELETE_SHARE_GROUP_STATE", "WRITE_SHARE_GROUP_STATE"}
    of_data |= {"INITIALIZE_SHARE_GROUP_STATE", "WRITE_TXN_MARKERS"}
    own_entries = {"RENEW_DELEGATION_TOKEN", "EXPIRE_DELEGATION_TOKEN"}
    verbs = ("CREATE_", "DELETE_", "ALTER_", "UPDATE_", "UNREGISTER_", "ELECT_", "INCREMENTAL_", "RENEW_", "EXPIRE_")
    named = {key.name for key in APIS if key.name.startswith(verbs)} - of_data - own_entries
    assert named <= {key.name for key in ADMINISTRATIVE}


async def test_values_of_secret_and_unknown_settings_are_hidden() -> None:
    configs = [
        AlterableConfig(name="retention.ms", value="7"),
        AlterableConfig(name="listener.name.x.sasl.jaas.config", value="canary-secret"),
        AlterableConfig(name="unheard.of", value="canary-secret"),
    ]
    body = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)]
    )
    response = SimpleNamespace(responses=[SimpleNamespace(resource_type=TOPIC, resource_name="t", error_code=0)])
    (change,) = _changes(ApiKey.INCREMENTAL_ALTER_CONFIGS, body, response)
    assert dict(change.details) == {
        "retention.ms": "7",
        "listener.name.x.sasl.jaas.config": "[hidden]",
        "unheard.of": "[hidden]",
    }


async def test_of_users_acls_and_quotas_the_entries_have_what_names_them() -> None:
    user = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="carol", mechanism=2)],
        upsertions=[
            ScramCredentialUpsertion(
                name="alice", mechanism=1, iterations=4096, salt=b"canary", salted_password=b"canary-secret"
            )
        ],
    )
    results = [
        AlterUserScramCredentialsResult(user="alice"),
        AlterUserScramCredentialsResult(user="carol", error_code=91),
    ]
    assert _changes(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, user, AlterUserScramCredentialsResponse(results=results)) == [
        Change("USER", "alice", 0, (("set", "SCRAM-SHA-256"),)),
        Change("USER", "carol", 91, (("deleted", "SCRAM-SHA-512"),)),
    ]
    acl = AclCreation(
        resource_type=2,
        resource_name="orders",
        resource_pattern_type=4,
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=2,
    )
    (change,) = _changes(
        ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[acl]), CreateAclsResponse(results=[AclCreationResult()])
    )
    assert change.name == "TOPIC:orders"
    assert dict(change.details) == {
        "principal": "User:bob",
        "host": "*",
        "operation": "READ",
        "permission": "DENY",
        "pattern": "PREFIXED",
    }
    entity = [EntityData(entity_type="user", entity_name=None), EntityData(entity_type="client-id", entity_name="app")]
    ops = [OpData(key="producer_byte_rate", value=1024.0), OpData(key="request_percentage", remove=True)]
    quotas = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=entity, ops=ops)])
    answer = AlterClientQuotasResponse(entries=[AlterClientQuotasResponseEntryData(entity=entity)])
    assert _changes(ApiKey.ALTER_CLIENT_QUOTAS, quotas, answer) == [
        Change(
            "CLIENT_QUOTA",
            "user=<default>,client-id=app",
            0,
            (("producer_byte_rate", "1024"), ("request_percentage", "")),
        )
    ]
