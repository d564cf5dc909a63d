"""Tests what is written at a start and by every broker when the answer of the store is lost: with and without effect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.core.errors import CoordinatorLoadInProgress
from ottla.metadata_store import znodes
from ottla.metadata_store.broker_registration import join_cluster
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.producer_ids import ProducerIdManager
from ottla.metadata_store.store import Op, OutcomeUnknown


class LosingSession(EmbeddedSession):
    """Loses the answer of its first commit."""

    def __init__(self, store: EmbeddedMetadataStore, *, has_effect: bool) -> None:
        super().__init__(store)
        self.has_effect = has_effect
        self.lost = 0

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        if self.lost:
            return await super().commit(ops)
        self.lost += 1
        if self.has_effect:
            await super().commit(ops)
        raise OutcomeUnknown(ops[0].path)


@pytest.mark.parametrize("has_effect", [True, False])
async def test_a_broker_joins_though_the_answer_was_lost(has_effect: bool) -> None:
    session = LosingSession(EmbeddedMetadataStore(), has_effect=has_effect)
    assert await join_cluster(session, "AAAAAAAAAAAAAAAAAAAAAQ") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert session.lost


@pytest.mark.parametrize("has_effect", [True, False])
async def test_a_block_of_producer_ids_with_an_unknown_outcome_is_not_used(has_effect: bool) -> None:
    store = EmbeddedMetadataStore()
    await join_cluster(EmbeddedSession(store), "AAAAAAAAAAAAAAAAAAAAAQ")
    session = LosingSession(store, has_effect=has_effect)
    first = await ProducerIdManager(session, node_id=1).allocate()
    assert first == (znodes.PRODUCER_IDS_PER_BLOCK if has_effect else 0)
    assert session.lost


async def test_without_a_session_a_producer_has_to_try_again() -> None:
    session = EmbeddedMetadataStore().session()
    await join_cluster(session, "AAAAAAAAAAAAAAAAAAAAAQ")
    manager = ProducerIdManager(session, node_id=1)
    await session.expire()
    with pytest.raises(CoordinatorLoadInProgress):
        await manager.allocate()
    await session.renew()
    assert await manager.allocate() == 0
