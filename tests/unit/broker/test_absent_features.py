"""What is asked about access control, reassignments, elections and quotas is answered as Kafka does."""

from __future__ import annotations

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import (
    create_acls,
    create_topics,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    elect_leaders,
    list_partition_reassignments,
)

pytestmark = pytest.mark.simulated_time

PREFERRED, UNCLEAN = 0, 1
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


async def create_topic(server: BrokerHandlers, name: str, partitions: int) -> None:
    wanted = create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    made = await server.call("create_topics", 7, create_topics.CreateTopicsRequest(topics=[wanted], timeout_ms=9000))
    assert not made.topics[0].error_code


async def test_without_an_authorizer_acls_are_disabled(broker: BrokerHandlers) -> None:
    disabled = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    described = await broker.call("describe_acls", 3, describe_acls.DescribeAclsRequest())
    assert (described.error_code, described.error_message, described.resources) == (*disabled, [])
    creations = [create_acls.AclCreation(resource_name="t")] * 2
    created = await broker.call("create_acls", 3, create_acls.CreateAclsRequest(creations=creations))
    assert [(each.error_code, each.error_message) for each in created.results] == [disabled] * 2
    filters = [delete_acls.DeleteAclsFilter()] * 3
    deleted = await broker.call("delete_acls", 3, delete_acls.DeleteAclsRequest(filters=filters))
    assert [(each.error_code, each.error_message) for each in deleted.filter_results] == [disabled] * 3


async def test_there_are_no_reassignments(broker: BrokerHandlers) -> None:
    asked = list_partition_reassignments.ListPartitionReassignmentsTopics(name="none", partition_indexes=[0])
    for topics in (None, [asked]):
        reassignments = await broker.call(
            "list_partition_reassignments",
            0,
            list_partition_reassignments.ListPartitionReassignmentsRequest(topics=topics),
        )
        assert (reassignments.error_code, reassignments.error_message, reassignments.topics) == (0, None, [])


async def test_leaders_are_elected_already_or_unavailable(broker: BrokerHandlers) -> None:
    await create_topic(broker, "t", 2)

    async def elect(election: int, *asked: tuple[str, list[int]]) -> list[tuple[str, list[tuple[int, int]]]]:
        wanted = [elect_leaders.TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in asked]
        request = elect_leaders.ElectLeadersRequest(election_type=election, topic_partitions=wanted or None)
        answer = await broker.call("elect_leaders", 2, request)
        assert answer.error_code == (0 if election in {PREFERRED, UNCLEAN} else ErrorCode.INVALID_REQUEST)
        return [
            (topic.topic, [(part.partition_id, part.error_code) for part in topic.partition_result])
            for topic in answer.replica_election_results
        ]

    not_needed, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for election in (PREFERRED, UNCLEAN):
        assert await elect(election, ("t", [0, 1, 2]), ("none", [0])) == [
            ("t", [(0, not_needed), (1, not_needed), (2, unknown)]),
            ("none", [(0, unknown)]),
        ]
        assert await elect(election) == [("t", [])]
    assert await elect(9, ("t", [0])) == [("t", [(0, ErrorCode.INVALID_REQUEST)])]
    broker.services.replicas._go_offline(TopicPartition("t", 1), "for this test")
    assert await elect(PREFERRED) == [("t", [(1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)])]
    assert await elect(UNCLEAN) == [("t", [(1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)])]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.NONE),
        ([("user", EXACT, "a"), ("client-id", DEFAULT, None)], ErrorCode.NONE),
        ([("ip", SPECIFIED, None)], ErrorCode.NONE),
        ([("", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("group", EXACT, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", EXACT, "::1"), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_there_are_no_client_quotas_and_a_wrong_filter_is_refused(
    broker: BrokerHandlers, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    wanted = [
        describe_client_quotas.ComponentData(entity_type=kind, match_type=match_type, match=match)
        for kind, match_type, match in components
    ]
    request = describe_client_quotas.DescribeClientQuotasRequest(components=wanted)
    answer = await broker.call("describe_client_quotas", 1, request)
    assert (answer.error_code, answer.entries) == (code, None if code else [])
    assert bool(answer.error_message) == bool(code)


async def test_no_user_has_scram_credentials(broker: BrokerHandlers) -> None:
    async def describe(*names: str) -> list[tuple[str, int]]:
        users = [describe_user_scram_credentials.UserName(name=name) for name in names]
        request = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=users or None)
        answer = await broker.call("describe_user_scram_credentials", 0, request)
        assert answer.error_code == ErrorCode.NONE
        return [(each.user, each.error_code) for each in answer.results]

    assert await describe() == []
    assert await describe("a", "b", "a") == [("a", ErrorCode.DUPLICATE_RESOURCE), ("b", ErrorCode.RESOURCE_NOT_FOUND)]
