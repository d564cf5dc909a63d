"""ElectLeaders (key 43), versions 0 to 2.

What it does
  Answers ELECTION_NOT_NEEDED for each partition whose preferred replica (or, for an unclean election, any replica)
  leads already, and that no leader is available where its log directory is offline. A request for all partitions is
  answered with those whose answer is not ELECTION_NOT_NEEDED, as in Kafka.

What it does not do
  Move a leader: each partition has one replica.

Versions
  v1   the kind of election (KIP-460), and an error code for the request
  v2   flexible encoding
"""

from __future__ import annotations

from enum import IntEnum

from ottla.broker.context import RequestContext
from ottla.broker.handler_helpers import leader_of, replication_of
from ottla.coordination.view import PartitionView
from ottla.core.errors import ErrorCode
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

NAME_MAX = 249
"""The length of the longest legal topic name."""

WORK = 3
"""The share of a slice of work of one partition."""


class Election(IntEnum):
    """The kinds of elections."""

    PREFERRED = 0
    UNCLEAN = 1


async def handle(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """The state of each partition's leader."""
    each = ctx.services.slices.each
    if request.topic_partitions is not None and not request.topic_partitions:
        return ElectLeadersResponse()  # as in Kafka, whatever the kind of election
    if request.election_type not in tuple(Election):
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            replica_election_results=[
                await _refused(ctx, asked, f"Unknown election type {request.election_type}")
                async for asked in each(request.topic_partitions or ())
            ],
        )
    election = Election(request.election_type)
    if request.topic_partitions is None:
        topics = ctx.services.cluster.current.topics.values()
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(
                    topic=topic.name,
                    partition_result=[
                        result
                        async for partition in each(topic.partitions, WORK)
                        if (result := _elect(ctx, topic.name, partition, election)).error_code
                        != ErrorCode.ELECTION_NOT_NEEDED
                    ],
                )
                async for topic in each(topics)
            ]
        )
    return ElectLeadersResponse(
        replica_election_results=[
            await _elect_in(ctx, asked, election) async for asked in each(request.topic_partitions)
        ]
    )


async def _refused(ctx: RequestContext, asked: TopicPartitions, why: str) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=asked.topic,
        partition_result=[
            PartitionResult(partition_id=index, error_code=ErrorCode.INVALID_REQUEST, error_message=why)
            async for index in ctx.services.slices.each(asked.partitions)
        ],
    )


async def _elect_in(ctx: RequestContext, asked: TopicPartitions, election: Election) -> ReplicaElectionResult:
    topic, results = asked.topic, []
    # one text for all partitions of the topic, and not longer than a name may be: it is in each result
    no_topic, no_partition = f"No such topic as {topic[:NAME_MAX]}", f"No such partition of {topic[:NAME_MAX]}"
    async for index in ctx.services.slices.each(asked.partitions, WORK):
        view = ctx.services.cluster.current
        partition = view.partition(topic, index)
        if partition is not None:
            results.append(_elect(ctx, topic, partition, election))
        else:
            missing = no_partition if topic in view.topics else no_topic
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(PartitionResult(partition_id=index, error_code=code, error_message=missing))
    return ReplicaElectionResult(topic=topic, partition_result=results)


def _elect(ctx: RequestContext, topic: str, partition: PartitionView, election: Election) -> PartitionResult:
    offline = replication_of(ctx.services, topic, partition).offline
    _, leader = leader_of(ctx.services.cluster.current, partition, offline, ctx.listener)
    if leader != -1 and (election is Election.UNCLEAN or leader == partition.replicas[0]):
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    elif election is Election.PREFERRED:
        code, message = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    else:
        code, message = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
    return PartitionResult(partition_id=partition.index, error_code=code, error_message=message)
