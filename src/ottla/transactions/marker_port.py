"""Declares the marker that ends a transaction, and the port through which the coordinator has it written.

The marker of a transaction goes to every partition of the transaction. The broker implements the port for the
partitions that it leads; an implementation that reaches other brokers sends WriteTxnMarkers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.transactions.metadata import TransactionVersion


class TransactionMarker(NamedTuple):
    """Ends the transaction of one producer."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int  # the leader epoch of the coordinator's partition of `__transaction_state`
    version: TransactionVersion  # with TV_2 the epoch is one higher than the epoch of the records


class MarkerSender(Protocol):
    """Port: writes markers."""

    async def send(
        self, marker: TransactionMarker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Write the marker to these partitions; returns once each is replicated or has failed. Never raises.

        The result UNKNOWN_TOPIC_OR_PARTITION means that the partition was deleted, so that it needs no marker.
        """
        ...
