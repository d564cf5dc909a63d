"""Keeps the share sessions of this broker: which partitions each consumer of a share group fetches (KIP-932).

A consumer names its partitions once; later requests name changes. The epoch, which grows with every request, detects
requests that are lost or sent twice. A session ends with the consumer's last request or its connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_for
from ottla.core.settings import INT_MAX

INITIAL_EPOCH, FINAL_EPOCH = 0, -1


class SessionPartition(NamedTuple):
    """Names a partition by its topic's id."""

    topic_id: UUID
    partition: int


class ShareSession:
    """Holds the partitions of one consumer."""

    __slots__ = ("connection_id", "epoch", "group_id", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection_id: int) -> None:
        self.group_id, self.member_id, self.connection_id = group_id, member_id, connection_id
        self.epoch = 1  # of the next request
        self.partitions: dict[SessionPartition, str] = {}  # in order; with the topic's name, once it was found

    def add(self, partitions: Iterable[SessionPartition]) -> None:
        """Add partitions; those that the session has keep their place."""
        for partition in partitions:
            self.partitions.setdefault(partition, "")

    def in_turn(self) -> list[SessionPartition]:
        """Return the partitions, each time beginning with another one: none is served last always."""
        partitions = list(self.partitions)
        first = self.epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]

    def advance(self) -> None:
        """Expect the next request."""
        self.epoch = 1 if self.epoch == INT_MAX else self.epoch + 1


class ShareSessions:
    """Holds all sessions, by group and member."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, group_id: str, member_id: str) -> ShareSession | None:
        """Return the session of a member, or None."""
        return self._sessions.get((group_id, member_id))

    def is_open(self, session: ShareSession) -> bool:
        """Return whether the session has neither ended nor been replaced."""
        return self.find(session.group_id, session.member_id) is session

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return any(group == group_id for group, _ in self._sessions)

    def of_connection(self, connection_id: int) -> list[ShareSession]:
        """Return the sessions that a connection opened and that are open."""
        return [session for session in self._sessions.values() if session.connection_id == connection_id]

    def fetch(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        *,
        added: Iterable[SessionPartition] = (),
        forgotten: Iterable[SessionPartition] = (),
        acknowledges: bool = False,
        connection_id: int,
    ) -> ShareSession:
        """Return the session of a ShareFetch, new with the first epoch. Raises KafkaError."""
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise InvalidRequest("The first request of a share session has no records to acknowledge.")
            return self._create(group_id, member_id, added, connection_id)
        session = self._existing(group_id, member_id, epoch)
        if epoch != FINAL_EPOCH:
            session.add(added)
            for partition in forgotten:
                session.partitions.pop(partition, None)
            session.advance()
        return session

    def acknowledge(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a ShareAcknowledge, which cannot be the first request. Raises KafkaError."""
        if epoch == INITIAL_EPOCH:
            raise error_for(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = self._existing(group_id, member_id, epoch)
        if epoch != FINAL_EPOCH:
            session.advance()
        return session

    def remove(self, session: ShareSession) -> None:
        """End a session."""
        if self.is_open(session):
            del self._sessions[session.group_id, session.member_id]

    def _create(
        self, group_id: str, member_id: str, added: Iterable[SessionPartition], connection_id: int
    ) -> ShareSession:
        if self.find(group_id, member_id) is None and len(self._sessions) >= self._max:
            raise error_for(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id, connection_id)
        session.add(added)
        return session

    def _existing(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        session = self.find(group_id, member_id)
        if session is None:
            raise error_for(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch not in (FINAL_EPOCH, session.epoch):
            raise error_for(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session


def is_limit(error: KafkaError) -> bool:
    """Return whether there are too many sessions: the client tries again, and must not at once."""
    return error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
