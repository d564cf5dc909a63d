"""Serves the fetches of followers: reads those partitions of a session that have something to send.

The sessions are in broker/sessions/replica_sessions.py. A request reads the partitions with news and no others,
whatever the number of partitions in the session. A high watermark or a log start that moved is news of its own: it goes
with the next response that is due, at the latest when the wait of a request ends.

A follower may send its next request while the one before it waits: that ends the wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.fetch.fetch_data import data_of, divergence, offsets_of, refusal, size_of, topic_name
from ottla.broker.handler_parts.new_leaders import current_leader
from ottla.broker.services import Services
from ottla.broker.sessions.fetch_sessions import INITIAL_EPOCH, NO_SESSION
from ottla.broker.sessions.replica_sessions import ReplicaPartition, ReplicaSession
from ottla.core.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower, UnknownTopicId
from ottla.net.connection import PendingResponse
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.partition import Partition
from ottla.wire.generated.fetch import LeaderIdAndEpoch
from ottla.wire.hot.fetch import (
    FIRST_WITH_LEADERS,
    NO_LEADER,
    NO_TOPIC_ID,
    FetchedTopic,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
)

log = logging.getLogger(__name__)

READS_MAX = 250
"""Partitions that one response reads, five milliseconds of work; the next response has the others."""


class ReplicaFetch(DelayedOperation):
    """One request until its response is sent."""

    __slots__ = ("_api_version", "_bytes", "_found", "_is_due", "_is_scheduled", "_request", "_services", "_session")

    def __init__(
        self,
        services: Services,
        api_version: int,
        request: FetchRequest,
        session: ReplicaSession,
        response: PendingResponse,
    ) -> None:
        super().__init__(response)
        self._services = services
        self._api_version = api_version
        self._request = request
        self._session = session
        self._found: dict[ReplicaPartition, PartitionData] = {}
        self._bytes = 0  # of all records found
        self._is_due = False  # there is an error or a divergence, or too much to read at once
        self._is_scheduled = False

    def begin(self) -> None:
        """Respond at once if there is enough or no time to wait; otherwise wait."""
        request, services = self._request, self._services
        self._read_news()
        if (
            self._has_enough
            or request.max_wait_ms <= 0
            or services.delayed_operations.is_stopping
            or request.session_epoch == INITIAL_EPOCH  # the follower can send what changes from now on
        ):
            self.complete()
            return
        assert self.response is not None
        self.response.is_pipelined = True
        self.response.connection.is_busy_polled = False  # a follower asks again when it has written
        self._put_back()
        self._session.waiting = self
        services.delayed_operations.add(self, request.max_wait_ms / 1000)

    @property
    def _has_enough(self) -> bool:
        return self._is_due or (self._bytes > 0 and self._bytes >= self._request.min_bytes)

    # ---- Reading

    def _read_news(self) -> None:
        """Read the partitions with news, within the limits of the request."""
        session, services = self._session, self._services
        left = min(self._request.max_bytes, services.config.server.fetch_bytes_max) - self._bytes
        now_s = services.clock.monotonic()
        if session.held_back and not services.replicas.context.leader_quota.wait_s(now_s):
            session.release_held_back()
        if len(session.news) > READS_MAX:
            self._is_due = True
        for each in tuple(itertools.islice(session.news, READS_MAX)):
            del session.news[each]
            data = self._read(each, max(left, 0), now_s)
            if data is None:
                continue
            self._found[each] = data
            if data.records is not None:
                size = size_of(data.records)
                left -= size
                self._bytes += size
            else:
                self._is_due = True

    def _read(self, each: ReplicaPartition, left: int, now_s: float) -> PartitionData | None:
        """Return what to send of a partition now; None if that is nothing."""
        asked, session = each.asked, self._session
        try:
            partition = each.partition
            if partition is None or not partition.is_serving:
                partition = self._find(each)
                session.bind(each, partition)
            found = partition.read_for_replica(
                (session.node_id, session.broker_epoch),
                fetch_offset=asked.fetch_offset,
                last_fetched_epoch=asked.last_fetched_epoch,
                current_leader_epoch=asked.current_leader_epoch,
                log_start_offset=asked.log_start_offset,
                max_bytes=min(asked.partition_max_bytes, left),
                at_least_one=not self._bytes,
                now_s=now_s,
            )
            if not isinstance(found, FetchDataInfo):
                each.is_answered = True
                return divergence(partition, found)
            if found.region is None:
                if asked.fetch_offset < partition.log.end_offset:
                    # there is no space left in this response; in an empty one it is the throttle
                    (session.news if self._bytes else session.held_back)[each] = None
                elif self._is_news(each, partition):
                    session.moved[each] = None
                return None
            data = data_of(partition, found)
        except (KafkaError, OSError) as error:
            each.is_answered = True
            return refusal(asked.partition, error, self._leader(each, error))
        each.is_answered = True
        return data

    def _leader(self, each: ReplicaPartition, error: BaseException) -> LeaderIdAndEpoch:
        if self._api_version < FIRST_WITH_LEADERS or not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return NO_LEADER
        name, topic_id, index = each.key
        view = self._services.cluster.current
        topic = view.topic_by_id.get(topic_id) or view.topics.get(name)
        return current_leader(topic, index)  # without its endpoint: a follower has the snapshot

    def _find(self, each: ReplicaPartition) -> Partition:
        """Find a partition by name or id. Raises the KafkaError to respond with."""
        name, topic_id, index = each.key
        found = self._services.replicas.find(topic_name(self._services.cluster.current, name, topic_id), index)
        if topic_id not in (NO_TOPIC_ID, found.log.topic_id.bytes):
            raise UnknownTopicId  # the replica of a deleted topic of the same name: the snapshot is being applied
        return found

    @staticmethod
    def _is_news(each: ReplicaPartition, partition: Partition) -> bool:
        return (
            partition.high_watermark != each.sent_high_watermark
            or partition.log.log_start_offset != each.sent_log_start
        )

    # ---- Waiting

    def wake(self) -> None:
        """Read what has news at the end of this turn of the loop, with all that is appended in it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wakened)

    def _wakened(self) -> None:
        self._is_scheduled = False
        if self.is_completed:
            return
        try:
            self._read_news()
        except Exception:
            log.exception("unexpected error while partitions were read for a follower")
            self.abandon()
            return
        if self._has_enough:
            self.complete()
        else:
            self._put_back()

    def _put_back(self) -> None:
        """Read again later what is not enough for a response: its file may be deleted while this waits."""
        for each in self._found:
            each.is_answered = False
            self._session.news[each] = None
        self._found, self._bytes = {}, 0

    def expire(self) -> None:
        """Respond with what there is, also of partitions that may not be throttled any more."""
        self._session.release_held_back()
        self._read_news()
        self.complete()

    def stop(self) -> None:
        """Complete now because the broker stops: there is nothing to wait for."""
        self.complete()

    def abandon(self) -> None:
        """Release the session, too."""
        self._leave()
        if self._session.session_id == NO_SESSION:
            self._session.close()
        super().abandon()

    def _leave(self) -> None:
        if self._session.waiting is self:
            self._session.waiting = None

    # ---- Responding

    def respond(self, response: PendingResponse) -> None:
        """Send what was found, and the high watermarks and log starts that moved."""
        session = self._session
        self._leave()
        found, self._found = self._found, {}
        for each in tuple(itertools.islice(session.moved, READS_MAX)):
            if each in session.news:
                continue  # it may diverge at the position that was named: a follower must not apply the watermark then
            del session.moved[each]
            partition = each.partition
            if partition is None or not partition.is_serving:
                continue
            if each not in found:
                if self._is_news(each, partition):
                    found[each] = offsets_of(partition)
            elif not found[each].error_code:  # it has moved since it was read
                found[each].high_watermark = partition.high_watermark
                found[each].log_start_offset = partition.log.log_start_offset
        topics: dict[tuple[str, bytes], FetchedTopic] = {}
        for each, data in found.items():
            if not data.error_code:
                each.sent_high_watermark, each.sent_log_start = data.high_watermark, data.log_start_offset
            name, topic_id, _ = each.key
            topic = topics.get((name, topic_id))
            if topic is None:
                topics[name, topic_id] = FetchedTopic(name, topic_id, [data])
            else:
                topic.partitions.append(data)
        response.send(
            encode_fetch_response(
                list(topics.values()), self._api_version, response.correlation_id, session_id=session.session_id
            )
        )
        if session.session_id == NO_SESSION:
            session.close()
