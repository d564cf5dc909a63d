"""Serves the requests that Kafka's older tools write into ZooKeeper: to reassign partitions, to elect leaders.

As in Kafka a request to reassign stays until all its partitions are moved, so that the tool sees that it runs, and one
to elect leaders goes once it was tried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ottla.controller.elections import Election
from ottla.controller.reassignments import RequestedReassignment
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.store import Delete, MetadataStore, Node, NoSuchNode, VersionConflict

log = logging.getLogger(__name__)


class AdminRequests:
    """Serves the requests that are in the snapshots."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        view: Callable[[], ClusterView],
        reassign: Callable[[Sequence[RequestedReassignment]], Awaitable[list[KafkaError | None]]],
        elect_leaders: Callable[[Election, Sequence[TopicPartition]], Awaitable[list[KafkaError | None]]],
    ) -> None:
        self._store, self._view, self._reassign, self._elect_leaders = store, view, reassign, elect_leaders
        self._begun: set[tuple[int, TopicPartition]] = set()  # by the request's node: what it asked for was begun

    async def serve(self) -> None:
        """Do what is requested, and delete the requests that are done. Raises StoreError and NotController."""
        for path, node in self._view().admin_requests.items():
            try:
                if path == znodes.REASSIGN_PARTITIONS:
                    is_done = await self._reassign_partitions(node)
                else:
                    is_done = await self._elect_preferred_leaders(node)
            except znodes.MalformedNode as error:
                log.warning("a request of an older tool is not what it should be and is deleted: %s", error)
                is_done = True
            if is_done:
                await self._delete(path, node)

    async def _reassign_partitions(self, node: Node) -> bool:
        """Begin the moves; return whether all are over."""
        wanted = znodes.decode_reassign_partitions(node.value)
        new = {tp: replicas for tp, replicas in wanted.items() if (node.created, tp) not in self._begun}
        todo = [RequestedReassignment(tp, replicas) for tp, replicas in new.items() if not self._has(tp, replicas)]
        if todo:
            _log_refused("reassigned", [reassignment.partition for reassignment in todo], await self._reassign(todo))
        self._begun |= {(node.created, tp) for tp in new}
        return not any(self._is_moving(tp) for tp in wanted)

    def _has(self, tp: TopicPartition, replicas: Sequence[int]) -> bool:
        partition = self._view().partition(*tp)
        if partition is None:
            return False
        target = [each for each in partition.replicas if each not in partition.removing]
        return target == list(replicas)

    def _is_moving(self, tp: TopicPartition) -> bool:
        partition = self._view().partition(*tp)
        return partition is not None and bool(partition.adding or partition.removing)

    async def _elect_preferred_leaders(self, node: Node) -> bool:
        topic_partitions = znodes.decode_preferred_replica_election(node.value)
        errors = await self._elect_leaders(Election.PREFERRED, topic_partitions)
        _log_refused("led by their preferred leaders", topic_partitions, errors)
        return True

    async def _delete(self, path: str, node: Node) -> None:
        try:
            await self._store.commit([Delete(path, node.version)])
        except (NoSuchNode, VersionConflict):
            log.info("%s was changed meanwhile", path)


def _log_refused(what: str, partitions: Sequence[TopicPartition], errors: Sequence[KafkaError | None]) -> None:
    refused: Mapping[TopicPartition, KafkaError] = {
        tp: error for tp, error in zip(partitions, errors, strict=True) if error is not None
    }
    if refused:
        named = ", ".join(f"{tp} ({error.message})" for tp, error in list(refused.items())[:10])
        log.warning("%d partitions that an older tool named cannot be %s: %s", len(refused), what, named)
