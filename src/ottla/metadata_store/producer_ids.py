"""Allocates producer ids that are unique in the cluster, from blocks of 1000 taken from the store's counter.

The rest of a block is discarded when the broker stops: an id that may have been allocated must not be allocated again,
or the records of a new producer would be taken for duplicates of an old one's.
"""

from __future__ import annotations

import asyncio

from ottla.core.errors import CoordinatorLoadInProgress
from ottla.metadata_store import znodes
from ottla.metadata_store.store import (
    Create,
    MetadataStore,
    NodeExists,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    VersionConflict,
)

_ATTEMPTS_MAX = 20
_LAST_ID = (1 << 63) - 1


class ProducerIdManager:
    """Allocates producer ids for one broker (as Kafka's ProducerIdManager)."""

    def __init__(self, store: MetadataStore, *, node_id: int) -> None:
        self._store, self._node_id = store, node_id
        self._next_id, self._end_id = 0, 0  # the rest of our block
        self._reserving = asyncio.Lock()

    async def allocate(self) -> int:
        """Allocate a new id. Raises `CoordinatorLoadInProgress` if no block could be reserved.

        That is so after 20 attempts, or without a session with the store; the client tries again.
        """
        while self._next_id == self._end_id:
            async with self._reserving:
                if self._next_id == self._end_id:  # no other caller took a block meanwhile
                    try:
                        block = await self._reserve_block()
                    except SessionLost as error:
                        raise CoordinatorLoadInProgress from error
                    self._next_id, self._end_id = block.first, block.last + 1
        taken = self._next_id
        self._next_id += 1
        return taken

    async def _reserve_block(self) -> znodes.ProducerIdBlock:
        for _ in range(_ATTEMPTS_MAX):
            node = await self._store.get(znodes.PRODUCER_ID_BLOCK)
            latest = znodes.decode_producer_id_block(node.value) if node else None
            first = latest.last + 1 if latest else 0
            assert first <= _LAST_ID - znodes.PRODUCER_IDS_PER_BLOCK, "the producer ids of this cluster are exhausted"
            block = znodes.ProducerIdBlock(self._node_id, first, first + znodes.PRODUCER_IDS_PER_BLOCK - 1)
            text = znodes.encode_producer_id_block(block)
            path = znodes.PRODUCER_ID_BLOCK
            operation: Op = Put(path, text, node.version) if node else Create(path, text)
            try:
                await self._store.commit([operation])
            except (VersionConflict, NodeExists, OutcomeUnknown):
                await self._store.sync()
                continue  # another broker reserved that block, or it is unknown who did: take another one
            return block
        raise CoordinatorLoadInProgress
