"""Declares the port through which share partitions and share groups reach the share coordinator (KIP-932)."""

from __future__ import annotations

from typing import Protocol

from ottla.share_coordinator.machine import StateResult, StateWrite
from ottla.share_coordinator.records import SharePartitionKey


class Persister(Protocol):
    """Port: keeps the states of share partitions. All methods raise KafkaError if no coordinator responds."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> StateResult:
        """Begin or reset the state of a share partition."""
        ...

    async def write(self, key: SharePartitionKey, write: StateWrite) -> StateResult:
        """Change the state of a share partition."""
        ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateResult:
        """Read the state for a new leader of the partition."""
        ...

    async def summary(self, key: SharePartitionKey) -> StateResult:
        """Read the state without its batches."""
        ...

    async def delete(self, key: SharePartitionKey) -> StateResult:
        """Delete the state of a share partition."""
        ...
