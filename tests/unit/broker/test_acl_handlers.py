"""CreateAcls, DescribeAcls and DeleteAcls where an authorizer is configured."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.connection import Connection
from ottla.core.acls import CLUSTER_NAME, AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.errors import ErrorCode, NetworkException
from ottla.metadata_store.acl_znodes import acl_path
from ottla.metadata_store.store import Put
from ottla.security.config import AUTHORIZERS
from ottla.testing.cluster import BrokerHandlers, TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.generated.describe_acls import DescribeAclsRequest
from ottla.wire.generated.metadata import MetadataRequest

pytestmark = [pytest.mark.simulated_time, pytest.mark.options({"authorizer.class.name": AUTHORIZERS[0]})]
for_everyone = pytest.mark.options({"super.users": "User:ANONYMOUS"})

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ = AclBinding(TOPIC, LITERAL, "web", "User:a", "*", AclOperation.READ, PermissionType.ALLOW)


def creation(binding: AclBinding, **changed: int) -> AclCreation:
    fields: dict[str, Any] = {
        "resource_type": binding.resource_type,
        "resource_name": binding.resource_name,
        "resource_pattern_type": binding.pattern_type,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission_type,
    }
    return AclCreation(**{**fields, **changed})


def creations(*bindings: AclBinding) -> CreateAclsRequest:
    return CreateAclsRequest(creations=[creation(binding) for binding in bindings])


def fields(resource_type: int = 1, name: Any = None, **changed: Any) -> dict[str, Any]:
    """Return the fields of a filter, which chooses everything but for what is given."""
    return {
        "resource_type_filter": resource_type,
        "resource_name_filter": name,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changed,
    }


def deletions(*filters: dict[str, Any]) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=[DeleteAclsFilter(**each) for each in filters])


async def connect(cluster: TestCluster, node_id: int) -> Connection:
    return await cluster.services(node_id).nodes.connect_to(node_id)


def acls_of(cluster: TestCluster, node_id: int) -> set[AclBinding]:
    return set(cluster.services(node_id).cluster.current.acls.bindings())


async def described(connection: Connection, **chosen: Any) -> set[AclBinding]:
    answer = await connection.request(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**fields(**chosen)), timeout_s=10)
    assert (answer.error_code, answer.error_message) == (0, "")
    return {
        AclBinding(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    }


@for_everyone
async def test_acls_are_created_described_and_deleted_by_requests_to_any_broker(cluster: TestCluster) -> None:
    asked = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    connection = await connect(cluster, asked)
    prefixed = READ._replace(pattern_type=PREFIXED, host="10.0.0.0/8")
    slash = READ._replace(resource_type=GROUP, resource_name="a/b")

    answer = await connection.request(ApiKey.CREATE_ACLS, creations(READ, prefixed, slash, READ), timeout_s=10)
    assert [(each.error_code, each.error_message) for each in answer.results] == [(0, "")] * 4
    everything = {READ, prefixed, slash}
    assert acls_of(cluster, cluster.controller) == everything
    await cluster.until(lambda: all(acls_of(cluster, node_id) == everything for node_id in cluster.brokers))
    assert await described(connection) == everything
    assert await described(connection, name="web", pattern_type_filter=4) == {prefixed}
    assert await described(connection, resource_type=3) == {slash}

    deleted = await connection.request(
        ApiKey.DELETE_ACLS, deletions(fields(name="web"), fields(name="web", pattern_type_filter=3)), timeout_s=10
    )
    assert [[each.pattern_type for each in result.matching_acls] for result in deleted.filter_results] == [[3, 4], [3]]
    assert acls_of(cluster, cluster.controller) == {slash}
    await cluster.until(lambda: all(acls_of(cluster, node_id) == {slash} for node_id in cluster.brokers))


@for_everyone
async def test_acls_stay_after_a_restart_of_the_broker(broker: BrokerHandlers) -> None:
    await broker.services.controller.security.acls.create([READ])
    await broker.restart()

    assert acls_of(broker.cluster, 1) == {READ}


@pytest.mark.brokers(1)
@for_everyone
async def test_each_creation_has_its_own_error(cluster: TestCluster) -> None:
    connection = await connect(cluster, 1)
    wrong = [
        READ._replace(resource_name=""),
        READ._replace(resource_type=ResourceType.CLUSTER),
        READ._replace(principal="a"),
        READ._replace(host=""),
        READ._replace(host="10.0.0.0/33"),
    ]
    request = creations(*wrong, READ)
    request.creations += [
        creation(READ, **{field: 99}) for field in ("resource_type", "resource_pattern_type", "operation")
    ]

    answer = await connection.request(ApiKey.CREATE_ACLS, request, timeout_s=10)

    assert [each.error_code for each in answer.results] == [ErrorCode.INVALID_REQUEST] * 5 + [0] + [42] * 3
    assert [each.error_message for each in answer.results] == [
        "Invalid empty resource name",
        "The only valid name for the CLUSTER resource is kafka-cluster",
        "Could not parse principal from `a` (no colon is present separating the principal type from the principal name)",
        "Host pattern cannot be null or empty",
        "Invalid CIDR notation '10.0.0.0/33': Value [33] not in range [0,32]",
        "",
        "Invalid resourceType UNKNOWN",
        "Invalid patternType UNKNOWN",
        "Invalid operation UNKNOWN",
    ]
    assert acls_of(cluster, 1) == {READ}


@pytest.mark.brokers(1)
@for_everyone
@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
async def test_a_value_of_filters_in_one_creation_refuses_all(cluster: TestCluster, field: str) -> None:
    connection = await connect(cluster, 1)
    request = CreateAclsRequest(creations=[creation(READ), creation(READ, **{field: 1})])

    answer = await connection.request(ApiKey.CREATE_ACLS, request, timeout_s=10)

    assert [(each.error_code, each.error_message) for each in answer.results] == [(-1, None)] * 2
    assert not acls_of(cluster, 1)


@for_everyone
@pytest.mark.parametrize("long", [False, True])
async def test_a_value_that_is_unknown_closes_the_connection_of_the_client_alone(
    cluster: TestCluster, long: bool
) -> None:
    asked = next(node_id for node_id in cluster.brokers if node_id != cluster.controller)
    others = await connect(cluster, asked)
    await others.request(ApiKey.CREATE_ACLS, creations(READ), timeout_s=10)  # through the channel to the controller
    many = 3_000 if long else 0
    requests: list[tuple[ApiKey, Any]] = [
        (ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[creation(READ)] * many + [creation(READ, operation=0)])),
        (ApiKey.DELETE_ACLS, deletions(*[fields(name="web")] * many, fields(pattern_type_filter=0))),
        (ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**fields(permission_type=0))),
    ]
    for key, request in requests:
        connection = await connect(cluster, asked)
        with pytest.raises(NetworkException):
            await connection.request(key, request, timeout_s=10)

    channel = cluster.services(asked).controller_channel._connection
    assert channel is not None
    assert channel.usable
    await others.request(ApiKey.METADATA, MetadataRequest(topics=[]), timeout_s=10)
    assert acls_of(cluster, cluster.controller) == {READ}


@pytest.mark.brokers(1)
@for_everyone
async def test_a_filter_that_is_unknown_deletes_nothing(cluster: TestCluster) -> None:
    connection = await connect(cluster, 1)
    await connection.request(ApiKey.CREATE_ACLS, creations(READ), timeout_s=10)
    unknown = [
        fields(**{field: 99}) for field in ("resource_type", "pattern_type_filter", "operation", "permission_type")
    ]

    answer = await connection.request(ApiKey.DELETE_ACLS, deletions(*unknown), timeout_s=10)
    assert [each.error_code for each in answer.filter_results] == [ErrorCode.INVALID_REQUEST] * 4
    assert [each.error_message for each in answer.filter_results] == ["Unknown patternFilter."] * 2 + [
        "Unknown entryFilter."
    ] * 2
    assert acls_of(cluster, 1) == {READ}

    both = await connection.request(ApiKey.DELETE_ACLS, deletions(*unknown[:1], fields()), timeout_s=10)
    assert [(each.error_code, len(each.matching_acls)) for each in both.filter_results] == [(42, 0), (0, 1)]
    assert not acls_of(cluster, 1)


@pytest.mark.brokers(1)
@for_everyone
async def test_many_acls_are_created_described_and_deleted_by_one_request(cluster: TestCluster) -> None:
    connection = await connect(cluster, 1)
    many = [
        READ._replace(resource_name=f"t{number}", principal=f"User:{user}")
        for number in range(700)
        for user in range(3)
    ]

    answer = await connection.request(ApiKey.CREATE_ACLS, creations(*many), timeout_s=10)
    assert {each.error_code for each in answer.results} == {0}
    assert await described(connection) == set(many)

    deleted = await connection.request(ApiKey.DELETE_ACLS, deletions(fields()), timeout_s=10)
    assert len(deleted.filter_results[0].matching_acls) == len(many)
    assert not acls_of(cluster, 1)


@pytest.mark.brokers(1)
async def test_a_client_without_the_right_to_alter_or_describe_the_cluster_is_denied(cluster: TestCluster) -> None:
    connection = await connect(cluster, 1)

    async def codes() -> tuple[list[int], list[int], int]:
        created = await connection.request(ApiKey.CREATE_ACLS, creations(READ, READ), timeout_s=10)
        deleted = await connection.request(
            ApiKey.DELETE_ACLS, deletions(fields(name="x"), fields(name="x")), timeout_s=10
        )
        seen = await connection.request(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**fields()), timeout_s=10)
        assert bool(seen.resources) == (seen.error_code == 0)
        return (
            [each.error_code for each in created.results],
            [each.error_code for each in deleted.filter_results],
            seen.error_code,
        )

    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await codes() == ([denied] * 2, [denied] * 2, denied)
    assert not acls_of(cluster, 1)
    of_cluster = AclBinding(
        ResourceType.CLUSTER, LITERAL, CLUSTER_NAME, "User:ANONYMOUS", "*", AclOperation.DESCRIBE, PermissionType.ALLOW
    )
    await cluster.services(1).controller.security.acls.create([of_cluster])
    assert await codes() == ([denied] * 2, [denied] * 2, 0)
    await cluster.services(1).controller.security.acls.create([of_cluster._replace(operation=AclOperation.ALTER)])
    assert await codes() == ([0, 0], [0, 0], 0)
    await cluster.services(1).controller.security.acls.create(
        [of_cluster._replace(operation=AclOperation.ALTER, permission_type=PermissionType.DENY)]
    )
    assert await codes() == ([denied] * 2, [denied] * 2, 0)


@for_everyone
@pytest.mark.brokers(1)
async def test_acls_that_cannot_be_read_are_deleted_by_a_filter_on_their_pattern_alone(cluster: TestCluster) -> None:
    connection = await connect(cluster, 1)
    await connection.request(ApiKey.CREATE_ACLS, creations(READ), timeout_s=10)
    await cluster.store.session().commit([Put(acl_path(READ.pattern), b"{")])
    await cluster.until(lambda: not acls_of(cluster, 1))

    refused = await connection.request(ApiKey.CREATE_ACLS, creations(READ), timeout_s=10)
    assert refused.results[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "Delete all of them first" in refused.results[0].error_message
    await connection.request(ApiKey.DELETE_ACLS, deletions(fields(2, "web", pattern_type_filter=3)), timeout_s=10)
    created = await connection.request(ApiKey.CREATE_ACLS, creations(READ), timeout_s=10)

    assert created.results[0].error_code == 0
    assert acls_of(cluster, 1) == {READ}
