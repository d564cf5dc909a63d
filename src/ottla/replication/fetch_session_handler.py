"""Keeps the fetch session of a follower with a leader: what it has, and the requests that are not answered (KIP-227).

The first request of a session has epoch 0 and names all partitions; it leaves when all requests before it are answered,
and the second one when the session id is known. The next ones name only what differs from the session.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.core.errors import NetworkException
from ottla.core.settings import INT_MAX
from ottla.replication.follower_state import FetchPosition
from ottla.wire.hot.replica_fetch import FetchRequestWriter

PartitionKey = tuple[bytes, int]
"""Topic id, partition."""

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
REQUESTS_MAX: Final = 2
"""In flight at once: one that waits at the leader, and one that ends its wait."""


class FetchSessionHandler:
    """The sessions of one connection, one after the other."""

    __slots__ = (
        "_epoch",
        "_forgotten",
        "_in_flight",
        "_leader",
        "_named",
        "_number",
        "_oldest_since_s",
        "_stale_until",
        "broker_epoch",
        "session_id",
    )

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.session_id = NO_SESSION
        self.broker_epoch = -1  # of this broker, when the session began
        self._epoch = INITIAL_EPOCH  # of the next request
        self._named: dict[PartitionKey, tuple[FetchPosition, int]] = {}  # with the number of the last request
        self._forgotten: dict[PartitionKey, None] = {}  # in the session, and not to be fetched any more
        self._in_flight: deque[int] = deque()  # the numbers of the requests that are not answered
        self._oldest_since_s = 0.0  # when the first of them was sent, or became the first
        self._number = 0  # of the last request
        self._stale_until = 0  # answers to requests up to this number are of a session that has ended

    def __len__(self) -> int:
        return len(self._named)

    def begin(self, broker_epoch: int) -> None:
        """Begin a session: the next request has to name all partitions."""
        self.session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        self.broker_epoch = broker_epoch
        self._stale_until = self._number
        self._forgotten.clear()
        self._named.clear()

    # ---- Partitions

    def position(self, key: PartitionKey) -> FetchPosition | None:
        """Return the position of a partition as the session has it; None if it is not in the session."""
        named = self._named.get(key)
        return None if named is None else named[0]

    def asked_position(self, key: PartitionKey, number: int) -> FetchPosition | None:
        """Return the position to which a request's answer belongs; None if it was named again since, or removed."""
        named = self._named.get(key)
        return None if named is None or named[1] > number else named[0]

    def name(self, key: PartitionKey, position: FetchPosition) -> None:
        """Note that the next request names a partition."""
        self._forgotten.pop(key, None)
        self._named[key] = position, self._number + 1

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition with the next request, if the session has it."""
        if self._named.pop(key, None) is not None:
            self._forgotten[key] = None

    # ---- Requests

    @property
    def is_idle(self) -> bool:
        """Return whether all requests are answered."""
        return not self._in_flight

    @property
    def is_full(self) -> bool:
        """Return whether no further request may be in flight."""
        return len(self._in_flight) >= REQUESTS_MAX

    @property
    def awaits_answers(self) -> bool:
        """Return whether answers must come first: the session id, or what is left of the session before."""
        return bool(self._in_flight) and self._epoch <= 1

    def is_overdue(self, now_s: float, answer_s: float) -> bool:
        """Return whether the oldest request has not been answered for longer than this."""
        return bool(self._in_flight) and now_s - self._oldest_since_s > answer_s

    def write_forgotten(self, writer: FetchRequestWriter) -> None:
        """Write to the next request which partitions it removes."""
        if self._forgotten:
            for topic_id, index in self._forgotten:
                writer.forget(topic_id, index)
            self._forgotten.clear()

    def next_frame(self, writer: FetchRequestWriter, now_s: float) -> bytearray:
        """Return the next request, which is in flight from now on."""
        self._number += 1
        if not self._in_flight:
            self._oldest_since_s = now_s
        self._in_flight.append(self._number)
        frame = writer.frame(self._number & 0x7FFFFFFF, self.session_id, self._epoch, self.broker_epoch)
        self._epoch = 1 if self._epoch == INT_MAX else self._epoch + 1
        return frame

    def answered(self, correlation_id: int, now_s: float) -> int | None:
        """Return the number of the request that is answered; None if it is of a session that has ended.

        Raises NetworkException if it is not the oldest request.
        """
        in_flight = self._in_flight
        if not in_flight or in_flight[0] & 0x7FFFFFFF != correlation_id:
            raise NetworkException(f"broker {self._leader} answered request {correlation_id}, which is not next")
        number = in_flight.popleft()
        if in_flight:
            self._oldest_since_s = now_s
        return None if number <= self._stale_until else number
