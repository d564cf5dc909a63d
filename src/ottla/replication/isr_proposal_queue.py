"""Sends the ISR changes that partition leaders propose to the controller (KIP-497): AlterPartition.

One request is in flight at a time; proposals of ten milliseconds go together, up to a bound: after a broker has
started again thousands of partitions propose a change, and neither side may hold its loop for them. A request that
fails as a whole, or a partition of it with an error that a later try may not meet, is sent again after 50 ms, for ever:
a proposal ends with the controller's decision or with a newer state of the partition in the snapshot.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.store import StoreError

log = logging.getLogger(__name__)

COLLECT_SECONDS = 0.010
RETRY_SECONDS = 0.050

CHANGES_MAX = 250
"""Changes of one request: each costs this broker and the controller up to 20 microseconds in one turn of the loop."""

REFUSED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""The proposal was not applied: the partition goes back to the committed state."""

STALE = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""There is a newer state: the proposal stays pending until the snapshot has it."""


class IsrChange(NamedTuple):
    """A proposal of a leader: the in-sync replicas from now on."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]  # node id and broker epoch; UNKNOWN_BROKER_EPOCH: do not compare
    is_recovering: bool


class AlteredPartition(NamedTuple):
    """The state of a partition after the controller has applied a proposal."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    is_recovering: bool
    partition_epoch: int


Outcome = AlteredPartition | KafkaError


class AlterPartitionSender(Protocol):
    """Sends proposals to the controller, wherever it is."""

    async def send(self, changes: Sequence[IsrChange]) -> Sequence[Outcome]:
        """Return an outcome for each change, in their order. Raises KafkaError, OSError or StoreError without them."""
        ...


OnDecided = Callable[[IsrChange, Outcome], None]
"""Called on the loop with the controller's decision; not for a change that was withdrawn."""


class _Proposal(NamedTuple):
    change: IsrChange
    on_decided: OnDecided


class IsrChanges:
    """The proposals of all partitions that this broker leads."""

    def __init__(self) -> None:
        self._sender: AlterPartitionSender | None = None
        self._waiting: dict[TopicPartition, _Proposal] = {}  # not sent yet
        self._in_flight: dict[TopicPartition, _Proposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False  # the last attempt had no answer
        self.shrinks = self.expands = self.failures = 0  # since the start of the broker

    def start(self, sender: AlterPartitionSender) -> None:
        """Send from now on; what was proposed before goes first."""
        self._sender = sender
        if self._waiting:
            self._send_soon()

    async def close(self) -> None:
        """Send nothing any more."""
        self._sender = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def propose(self, topic_partition: TopicPartition, change: IsrChange, on_decided: OnDecided) -> None:
        """Send a change; it replaces an older one of the partition that was not sent yet."""
        self._waiting[topic_partition] = _Proposal(change, on_decided)
        self._send_soon()

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Withdraw a proposal that the snapshot has overtaken; one that is in flight is ignored when it returns."""
        self._waiting.pop(topic_partition, None)
        self._in_flight.pop(topic_partition, None)

    def _send_soon(self) -> None:
        if self._task is None and self._sender is not None:
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="alter partitions")

    async def _send_all(self) -> None:
        delay = COLLECT_SECONDS
        try:
            while self._waiting:
                await asyncio.sleep(delay)
                if not await self._send():
                    delay = RETRY_SECONDS
                else:  # without a pause while there is another full request
                    delay = COLLECT_SECONDS if len(self._waiting) < CHANGES_MAX else 0
        finally:
            self._task = None

    async def _send(self) -> bool:
        """Send what waits; return False if some of it must be sent again."""
        sender = self._sender
        if sender is None or not self._waiting:
            return True
        sent = dict(itertools.islice(self._waiting.items(), CHANGES_MAX))
        for topic_partition in sent:
            del self._waiting[topic_partition]
        self._in_flight = dict(sent)
        try:
            outcomes = await sender.send(tuple(proposal.change for proposal in sent.values()))
        except (KafkaError, OSError, StoreError) as error:
            if not self._is_failing:  # one line, however long it takes
                self._is_failing = True
                log.info("the ISR changes of %d partitions could not be sent and are sent again: %s", len(sent), error)
            self._send_again(self._in_flight)
            return False
        except Exception:  # what was sent must not be lost: the partitions propose nothing else while it is pending
            log.exception("unexpected error while ISR changes were sent; they are sent again")
            self._send_again(self._in_flight)
            return False
        if self._is_failing:
            self._is_failing = False
            log.info("the ISR changes are sent again without errors")
        again: dict[TopicPartition, _Proposal] = {}
        for (topic_partition, proposal), outcome in zip(sent.items(), outcomes, strict=True):
            if self._in_flight.get(topic_partition) is not proposal:
                continue  # withdrawn meanwhile
            if isinstance(outcome, KafkaError) and outcome.code not in REFUSED and outcome.code not in STALE:
                again[topic_partition] = proposal
                self.failures += 1
            else:
                del self._in_flight[topic_partition]
                proposal.on_decided(proposal.change, outcome)
        self._send_again(again)
        return not again

    def _send_again(self, proposals: dict[TopicPartition, _Proposal]) -> None:
        self._in_flight = {}
        self._waiting = {**proposals, **self._waiting}  # what was proposed meanwhile is newer
