"""Producer ids, never given twice: blocks of 1000 taken from the cluster's counter, handed out one by one.

What is left of a block when the broker stops is lost on purpose: an id that was perhaps given may not be given again,
or a new producer's records would be taken for repetitions of an old one's.
"""

from __future__ import annotations

import asyncio

from ottla.coordination import layout
from ottla.coordination.store import Create, MetadataStore, NodeExists, Op, Put, VersionConflict
from ottla.core.errors import CoordinatorLoadInProgress

_ATTEMPTS_MAX = 20
_LAST_ID = (1 << 63) - 1


class ProducerIds:
    """One broker's supply."""

    def __init__(self, store: MetadataStore, *, node_id: int) -> None:
        self._store, self._node_id = store, node_id
        self._next_id, self._end_id = 0, 0  # the rest of our block
        self._taking = asyncio.Lock()

    async def allocate(self) -> int:
        """An id nobody has ever had. Raises `CoordinatorLoadInProgress` if the store is too busy to give a block."""
        while self._next_id == self._end_id:
            async with self._taking:
                if self._next_id == self._end_id:  # nobody took one while we waited
                    block = await self._take_block()
                    self._next_id, self._end_id = block.first, block.last + 1
        taken = self._next_id
        self._next_id += 1
        return taken

    async def _take_block(self) -> layout.ProducerIdBlock:
        for _ in range(_ATTEMPTS_MAX):
            node = await self._store.get(layout.PRODUCER_ID_BLOCK)
            latest = layout.decode_producer_id_block(node.value) if node else None
            first = latest.last + 1 if latest else 0
            assert first <= _LAST_ID - layout.PRODUCER_IDS_PER_BLOCK, "the ids of this cluster are used up"
            block = layout.ProducerIdBlock(self._node_id, first, first + layout.PRODUCER_IDS_PER_BLOCK - 1)
            text = layout.encode_producer_id_block(block)
            path = layout.PRODUCER_ID_BLOCK
            operation: Op = Put(path, text, node.version) if node else Create(path, text)
            try:
                await self._store.commit([operation])
            except (VersionConflict, NodeExists):
                continue  # another broker took that block
            return block
        raise CoordinatorLoadInProgress
