"""Runs a term as controller: how a broker becomes controller, and how it writes in its term and in no other.

Every commit checks the node of the controller epoch, and begins only in the store session in which the term began. A
commit whose outcome is unknown is resolved by reading what it would have written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.controller.overlay import PartitionIndex
from ottla.core.errors import NotController
from ottla.metadata_store import znodes
from ottla.metadata_store.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    SessionStatus,
    StoreError,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ControllerTerm:
    """Holds what identifies a term, and what its controller knows beyond the snapshot."""

    epoch: int
    version: int  # of the epoch's node: the fencing token
    session: int  # the ordinal of the store session
    index: PartitionIndex = field(default_factory=PartitionIndex)
    is_followed: asyncio.Event = field(default_factory=asyncio.Event)  # the snapshot has all from before, or it is over
    has_taken_over: bool = False  # acted on all that happened before the term


class CommitOutcome(NamedTuple):
    """Reports how many operations were committed, and the path of the conflict that ended the writing, if any."""

    committed: int
    conflict: str | None = None


async def become_controller(store: MetadataStore, node_id: int, now_ms: int, *together: Op) -> ControllerTerm | None:
    """Become controller, with `together` in the same commit; returns None if there is a controller.

    All of it happens in one store session. Raises the `StoreError` of an operation of `together`, and `SessionLost`.
    """
    session = store.state.ordinal
    while True:
        node = await store.get(znodes.CONTROLLER_EPOCH)
        epoch = znodes.decode_epoch(node.value) + 1 if node else 1
        text = znodes.encode_epoch(epoch)
        write = Put(znodes.CONTROLLER_EPOCH, text, node.version) if node else Create(znodes.CONTROLLER_EPOCH, text)
        me = Create(znodes.CONTROLLER, znodes.encode_controller(node_id, now_ms), ephemeral=True)
        ops = [*together, me, write]
        _check_session(store, session)
        try:
            *_, version = await store.commit(ops)
        except OutcomeUnknown:
            if not await was_committed(store, [me, write]):
                continue
            version = node.version + 1 if node else 0
        except StoreError as error:
            if isinstance(error, SessionLost) or error.path not in {znodes.CONTROLLER, znodes.CONTROLLER_EPOCH}:
                raise
            return None  # another broker was elected
        _check_session(store, session)
        log.info("became controller", extra={"node_id": node_id, "controller_epoch": epoch})
        return ControllerTerm(epoch, version, session)


def _check_session(store: MetadataStore, session: int) -> None:
    """Raise `SessionLost` in a later session: a term there would have a node that ends with the wrong session."""
    if store.state.ordinal != session:
        raise SessionLost(znodes.CONTROLLER)


async def give_up_controller(store: MetadataStore, node_id: int) -> bool:
    """Delete the controller's node if it is this broker's, who has no term; returns whether it was deleted.

    Without that there would be no controller for as long as the session lasts. Raises `StoreError`.
    """
    epoch = await store.get(znodes.CONTROLLER_EPOCH)
    node = await store.get(znodes.CONTROLLER)
    if epoch is None or node is None or znodes.decode_controller(node.value) != node_id:
        return False
    await store.commit([Check(znodes.CONTROLLER_EPOCH, epoch.version), Delete(znodes.CONTROLLER)])
    return True


async def write_in_term(store: MetadataStore, term: ControllerTerm, commits: Sequence[Sequence[Op]]) -> CommitOutcome:
    """Make commits one after the other. Raises `NotController` once the term is over."""
    committed = 0
    waiting = deque(commits)
    while waiting:
        batch = [Check(znodes.CONTROLLER_EPOCH, term.version), *waiting[0]]
        while (state := store.state).status is SessionStatus.SUSPENDED:
            await store.next_state(state)
        if state.ordinal != term.session:
            raise NotController
        try:
            await store.commit(batch)
        except OutcomeUnknown:
            try:
                if not await was_committed(store, batch):
                    continue  # the same again: nothing of it was written
            except StoreError:
                raise NotController from None
        except SessionLost:
            raise NotController from None
        except StoreError as error:
            if error.path == znodes.CONTROLLER_EPOCH:
                raise NotController from None
            return CommitOutcome(committed, error.path)
        committed += len(waiting.popleft())
    return CommitOutcome(committed)


async def was_committed(store: MetadataStore, ops: Sequence[Op]) -> bool:
    """Return whether a commit with an unknown outcome was made: whether the store has what it wrote.

    A commit is made as a whole, so that all nodes that it wrote show it or none. Raises the `StoreError`.
    """
    await store.sync()
    for op in ops:
        if isinstance(op, Check) or (isinstance(op, Create) and not op.value):
            continue
        node = await store.get(op.path)
        if isinstance(op, Delete):
            return node is None
        if node is None or node.value != op.value:
            return False
        if isinstance(op, Create):
            return node.version == 0
        if op.expected_version != ANY_VERSION:
            return node.version == op.expected_version + 1
    return True
