"""Declares the events of a transactional id's state machine (`machine.py`), its outputs and its answers.

Values only. All times are wall-clock milliseconds: they are stored, and a timeout must count the time in which no
coordinator ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.machine_events import Loaded, NotStored, Reply, Stored
from ottla.transactions.metadata import TransactionMetadata, TransactionVersion

# ---- Events


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """InitProducerId. With `expected` a producer continues after an error (KIP-360)."""

    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    new_producer_id: int = NO_PRODUCER_ID  # given when the machine asked for one


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, or the first records of a partition."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: TransactionVersion = TransactionVersion.TV_0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxn:
    """EndTxn of a client."""

    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: TransactionVersion
    new_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTimedOut:
    """The coordinator checks whether the transaction has exceeded its timeout."""

    new_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class Expire:
    """The coordinator checks whether the transactional id was unused for `after_ms`."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class MarkersSent:
    """Each partition to which the marker was sent has answered."""

    results: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class WriteTimedOut:
    """The write with this number takes too long; `Stored` or `NotStored` follows all the same."""

    write: int


@dataclass(frozen=True, slots=True)
class RetryTimer:
    """The delay of a `Retry` has passed."""


Event = (
    InitProducerId
    | AddPartitions
    | EndTxn
    | AbortTimedOut
    | Expire
    | Stored
    | NotStored
    | WriteTimedOut
    | MarkersSent
    | RetryTimer
    | Loaded
)
NeedsProducerId = InitProducerId | EndTxn | AbortTimedOut

# ---- Outputs, to be performed in order


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write the state (None deletes the id) and apply it once it is durable; then `Stored`, or `NotStored`, follows."""

    write: int
    metadata: TransactionMetadata | None


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the marker to these partitions; the event `MarkersSent` must follow."""

    producer_id: int
    producer_epoch: int
    committed: bool
    version: TransactionVersion
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Retry:
    """Feed `RetryTimer` after a delay."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class AllocateProducerId:
    """Feed the event again with a new producer id, or answer its ticket with the error of the allocation."""

    event: NeedsProducerId
    ticket: int


# ---- Answers


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """Answers a request: an error, and the producer id and epoch to go on with."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


Output = WriteMetadata | SendMarkers | Retry | AllocateProducerId | Reply[TransactionAnswer]
