"""Fetch sessions (KIP-227): what a consumer fetches, remembered, so that it need not say it again each time.

A session holds its partitions in an order that turns: those that had data go to the end, so that a full answer does not
starve the rest. Sessions are bounded; the one unused for longest gives way if it is older than two minutes.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.core.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch

if TYPE_CHECKING:  # the message classes are imported with the first Fetch
    from ottla.wire.messages.fetch import FetchPartition, FetchRequest

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
EVICT_AFTER_SECONDS = 120.0
_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[str, UUID, int]
"""Topic name (empty from version 13 on), topic id (zero before), partition."""


class Fetched:
    """One partition of a fetch, and what its reader was last told of it."""

    __slots__ = ("asked", "sent_high_watermark", "sent_log_start", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: UUID, asked: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.asked = asked
        self.sent_high_watermark = -1
        self.sent_log_start = -1

    @property
    def key(self) -> PartitionKey:
        """Its place in the session."""
        return (self.topic, self.topic_id, self.asked.partition)


class FetchSession:
    """One consumer's standing request."""

    __slots__ = ("by_id", "epoch", "last_used", "partitions", "session_id")

    def __init__(self, session_id: int, *, by_id: bool, now: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH
        self.last_used = now
        self.partitions: OrderedDict[PartitionKey, Fetched] = OrderedDict()

    def apply(self, request: FetchRequest) -> None:
        """Add, change and forget partitions as the request says."""
        for fetched in asked_for(request):
            known = self.partitions.get(fetched.key)
            if known is None:
                self.partitions[fetched.key] = fetched
            else:
                known.asked = fetched.asked
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self.partitions.pop((topic.topic, topic.topic_id, index), None)

    def turn(self, served: Iterable[Fetched]) -> None:
        """Those that had data wait longest for their next turn."""
        for fetched in served:
            if fetched.key in self.partitions:
                self.partitions.move_to_end(fetched.key)


class FetchSessions:
    """All sessions of this broker."""

    def __init__(self, *, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the longest unused first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, *, by_id: bool, now: float) -> tuple[FetchSession | None, list[Fetched]]:
        """The session a request belongs to (None: none is kept) and all the partitions it asks for.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            if request.session_epoch == FINAL_EPOCH:
                return None, asked_for(request)
            session = self._new(by_id=by_id, now=now)
            if session is None:
                return None, asked_for(request)
            session.apply(request)
            return session, list(session.partitions.values())
        session = self._continue(request, by_id=by_id)
        session.apply(request)
        session.epoch = request.session_epoch
        session.last_used = now
        self._sessions.move_to_end(session.session_id)
        return session, list(session.partitions.values())

    def _continue(self, request: FetchRequest, *, by_id: bool) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound
        expected = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        if request.session_epoch != expected:
            raise InvalidFetchSessionEpoch
        if session.by_id != by_id:
            raise FetchSessionTopicIdError
        return session

    def _new(self, *, by_id: bool, now: float) -> FetchSession | None:
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < EVICT_AFTER_SECONDS:
                return None
            del self._sessions[oldest.session_id]
        session_id = self._rng.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, _EPOCH_MAX)
        session = self._sessions[session_id] = FetchSession(session_id, by_id=by_id, now=now)
        return session


def asked_for(request: FetchRequest) -> list[Fetched]:
    """The partitions a request names."""
    return [Fetched(topic.topic, topic.topic_id, asked) for topic in request.topics for asked in topic.partitions]
