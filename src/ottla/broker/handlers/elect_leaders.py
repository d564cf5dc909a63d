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

from collections.abc import Iterable
from functools import partial

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.handler_parts.partition_states import replica_states
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.election_events import has_wanted_leader
from ottla.controller.elections import Election
from ottla.core.acls import AclOperation
from ottla.core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.elect_leaders import (
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


class _Elections:
    """The partitions of a request: most need no election, which is seen without the controller's queue."""

    def __init__(self, election: Election) -> None:
        self.election = election
        self.topics: list[ReplicaElectionResult] = []
        self.needed: dict[str, dict[int, PartitionResult]] = {}


async def elect(request: Request, body: ElectLeadersRequest) -> list[ReplicaElectionResult] | KafkaError:
    """Elect leaders; return the outcome of each partition."""
    if not 0 <= body.election_type < len(KINDS):
        return []
    elections = _Elections(KINDS[body.election_type])
    if body.topic_partitions is None:
        topics = request.services.cluster.current.topics.values()
        await collect(request, Each[TopicView, None](topics, partial(_all_of, elections)))
    else:
        await collect(request, Each[TopicPartitions, None](body.topic_partitions, partial(_asked_of, elections)))
    try:
        for topic, needed in elections.needed.items():
            await _elect_in(request, elections.election, topic, needed)
    except KafkaError as error:
        return error
    return elections.topics


def _all_of(elections: _Elections, _request: Request, topic: TopicView, view: ClusterView) -> InParts[None]:
    indexes = (partition.index for partition in topic.partitions)
    return _topic(elections, topic.name, indexes, view)


def _asked_of(elections: _Elections, _request: Request, asked: TopicPartitions, view: ClusterView) -> InParts[None]:
    return _topic(elections, asked.topic, asked.partitions, view)


def _topic(elections: _Elections, topic: str, indexes: Iterable[int], view: ClusterView) -> InParts[None]:
    # one text for all partitions of the topic, and not longer than a name may be: it is in each result
    missing = UnknownTopicOrPartition(
        f"No such {'partition of' if topic in view.topics else 'topic as'} {topic[:NAME_MAX]}"
    )
    result = ReplicaElectionResult(topic=topic)
    elections.topics.append(result)
    one = partial(_partition, elections, topic, missing)
    return InParts(None, Each(indexes, one, into=result.partition_result, work=WORK))


def _partition(
    elections: _Elections, topic: str, missing: KafkaError, request: Request, index: int, view: ClusterView
) -> PartitionResult:
    partition = view.partition(topic, index)
    if partition is None:
        return _result(index, missing)
    is_offline = partition.leader in replica_states(request.services, view, topic, partition).offline
    if (not is_offline and has_wanted_leader(partition, elections.election)) or index in elections.needed.get(
        topic, ()
    ):
        return _result(index, ElectionNotNeeded())
    result = elections.needed.setdefault(topic, {})[index] = _result(index, None)
    return result


async def _elect_in(request: Request, election: Election, topic: str, needed: dict[int, PartitionResult]) -> None:
    """Elect the leaders of one topic, and note the outcomes."""
    names = [TopicPartition(topic, index) for index in needed]
    outcomes = await request.services.controller.elect_leaders(election, names)
    for result, outcome in zip(needed.values(), outcomes, strict=True):
        error = outcome
        if isinstance(outcome, ElectionNotNeeded):  # its log directory is offline, and nothing else can lead
            error = PreferredLeaderNotAvailable() if election is Election.PREFERRED else EligibleLeadersNotAvailable()
        result.error_code, result.error_message = error_fields(error)


def answer(
    _request: Request, body: ElectLeadersRequest, topics: list[ReplicaElectionResult] | KafkaError, _view: ClusterView
) -> ElectLeadersResponse | InParts[ElectLeadersResponse]:
    """Return the outcomes; of a request for all partitions, those that needed an election."""
    asked = body.topic_partitions
    if asked is not None and not asked:
        return ElectLeadersResponse()  # as in Kafka, whatever the kind of election
    if not 0 <= body.election_type < len(KINDS):
        refusal = ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
        unknown = InvalidRequest(f"Unknown election type {body.election_type}")
        return InParts(refusal, Each(asked or (), partial(_refused, unknown), into=refusal.replica_election_results))
    if isinstance(topics, KafkaError):
        return ElectLeadersResponse(error_code=topics.code)
    if asked is not None:
        return ElectLeadersResponse(replica_election_results=topics)
    response = ElectLeadersResponse()
    return InParts(response, Each(topics, _needed_of, into=response.replica_election_results))


def refuse(_request: Request, body: ElectLeadersRequest, error: KafkaError) -> InParts[ElectLeadersResponse]:
    """Answer the request and each partition with an error."""
    response = ElectLeadersResponse(error_code=error.code)
    one = partial(_refused, error)
    return InParts(response, Each(body.topic_partitions or (), one, into=response.replica_election_results))


def _refused(
    error: KafkaError, _request: Request, topic: TopicPartitions, _view: ClusterView
) -> InParts[ReplicaElectionResult]:
    result = ReplicaElectionResult(topic=topic.topic)
    return InParts(result, Each(topic.partitions, partial(_refused_partition, error), into=result.partition_result))


def _refused_partition(error: KafkaError, _request: Request, index: int, _view: ClusterView) -> PartitionResult:
    return _result(index, error)


def _needed_of(_request: Request, topic: ReplicaElectionResult, _view: ClusterView) -> InParts[ReplicaElectionResult]:
    result = ReplicaElectionResult(topic=topic.topic)
    return InParts(result, Each(topic.partition_result, _needed, into=result.partition_result))


def _needed(_request: Request, result: PartitionResult, _view: ClusterView) -> PartitionResult | None:
    return None if result.error_code == ErrorCode.ELECTION_NOT_NEEDED else result


def _result(index: int, error: KafkaError | None) -> PartitionResult:
    code, message = error_fields(error)
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


HANDLER = ElementWiseAfter(
    MESSAGES, first=elect, answer=answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse
)
