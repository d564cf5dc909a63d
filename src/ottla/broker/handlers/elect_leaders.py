"""ElectLeaders (key 43), versions 0 to 2.

What it does
  Makes the preferred replica of each partition its leader if it is in sync, or, for an unclean election, any live
  replica of a partition without leader. Answers ELECTION_NOT_NEEDED where there is such a leader already. A request for
  all partitions is answered with those whose answer is not ELECTION_NOT_NEEDED, as in Kafka.

What it does not do
  Wait until clients can reach the new leaders: each broker follows the change by itself.

Versions
  v1   the kind of election (KIP-460), and an error code for the request
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.handler_parts.partition_states import replica_states
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.election_events import has_wanted_leader
from ottla.controller.elections import Election
from ottla.coordination.view import PartitionView
from ottla.core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition
from ottla.wire.messages.elect_leaders import (
    MESSAGES,
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


KINDS = (Election.PREFERRED, Election.UNCLEAN)
"""By their number in the request."""


async def handle(request: Request, body: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders; return the outcome of each partition."""
    each = request.services.slices.each
    asked = body.topic_partitions
    if asked is not None and not asked:
        return ElectLeadersResponse()  # as in Kafka, whatever the kind of election
    if not 0 <= body.election_type < len(KINDS):
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            replica_election_results=[
                await _refused(request, topic, f"Unknown election type {body.election_type}")
                async for topic in each(asked or ())
            ],
        )
    if asked is None:
        topics = request.services.cluster.current.topics.values()
        asked = [TopicPartitions(topic=topic.name, partitions=[p.index for p in topic.partitions]) for topic in topics]
    try:
        results = [await _elect_in(request, topic, KINDS[body.election_type]) async for topic in each(asked)]
    except KafkaError as error:
        return ElectLeadersResponse(error_code=error.code)
    if body.topic_partitions is None:
        for result in results:
            result.partition_result = [
                found for found in result.partition_result if found.error_code != ErrorCode.ELECTION_NOT_NEEDED
            ]
    return ElectLeadersResponse(replica_election_results=results)


async def _refused(request: Request, asked: TopicPartitions, why: str) -> ReplicaElectionResult:
    return ReplicaElectionResult(
        topic=asked.topic,
        partition_result=[
            PartitionResult(partition_id=index, error_code=ErrorCode.INVALID_REQUEST, error_message=why)
            async for index in request.services.slices.each(asked.partitions)
        ],
    )


async def _elect_in(request: Request, asked: TopicPartitions, election: Election) -> ReplicaElectionResult:
    """Elect the leaders of one topic; most need no election, which is seen without the controller's queue."""
    topic, view = asked.topic, request.services.cluster.current
    # one text for all partitions of the topic, and not longer than a name may be: it is in each result
    no_topic, no_partition = f"No such topic as {topic[:NAME_MAX]}", f"No such partition of {topic[:NAME_MAX]}"
    results: list[PartitionResult] = []
    needed: dict[int, PartitionResult] = {}
    async for index in request.services.slices.each(asked.partitions, WORK):
        partition = view.partition(topic, index)
        if partition is None:
            missing = no_partition if topic in view.topics else no_topic
            results.append(_result(index, UnknownTopicOrPartition(missing)))
        elif (not _is_offline(request, topic, partition) and has_wanted_leader(partition, election)) or index in needed:
            results.append(_result(index, ElectionNotNeeded()))
        else:
            results.append(_result(index, None))
            needed[index] = results[-1]
    if needed:
        names = [TopicPartition(topic, index) for index in needed]
        outcomes = await request.services.controller.elect_leaders(election, names)
        for result, outcome in zip(needed.values(), outcomes, strict=True):
            error = outcome
            if isinstance(outcome, ElectionNotNeeded):  # its log directory is offline, and nothing else can lead
                error = (
                    PreferredLeaderNotAvailable() if election is Election.PREFERRED else EligibleLeadersNotAvailable()
                )
            result.error_code, result.error_message = error_fields(error)
    return ReplicaElectionResult(topic=topic, partition_result=results)


def _is_offline(request: Request, topic: str, partition: PartitionView) -> bool:
    services = request.services
    return partition.leader in replica_states(services, services.cluster.current, topic, partition).offline


def _result(index: int, error: KafkaError | None) -> PartitionResult:
    code, message = error_fields(error)
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


HANDLER = Awaited(MESSAGES, handle)
