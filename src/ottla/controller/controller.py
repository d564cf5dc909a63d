"""Applies the decisions of the controller's state machine with conditional writes, one change at a time.

One broker of the cluster is the controller: the one whose session holds `/controller`. Every write checks that no other
broker has become controller since. A change returns when it is in `Cluster.current` and all subscribers have acted on
it: a created topic accepts produce requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.controller.config import ControllerConfig
from ottla.controller.config_changes import AlterConfig
from ottla.controller.elections import BrokersGone, BrokerStarted, ElectLeaders
from ottla.controller.isr import AlteredPartition, AlterPartition, ProposedIsr
from ottla.controller.machine import Event, Outcome, apply
from ottla.controller.overlay import Overlay, Rules
from ottla.controller.partition_changes import Election
from ottla.controller.reassignments import Reassign, Reassignment, RunningReassignment, running_reassignments
from ottla.controller.topics import (
    BROKER_DEFAULT,
    PARTITIONS_PER_REQUEST_MAX,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    too_many_partitions,
)
from ottla.coordination import layout, membership
from ottla.coordination.cluster import Cluster
from ottla.coordination.store import Check, Create, MetadataStore, NodeExists, Op, Put, SessionLost, StoreError
from ottla.coordination.view import NO_LEADER, ClusterView, TopicView
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NotController, RequestTimedOut
from ottla.core.ids import TopicPartition, random_topic_id
from ottla.quotas.slices import LoopSlices
from ottla.storage.config import LogConfig

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 20
"""Bound on retries of a change after conflicting writes; only a faulty store could need more."""


EVENT_WORK = 10
"""Work of one event."""

PARTITIONS_ON_LOOP_MAX = 100
"""A decision about more of them is made in a thread: it is a pure function of values that do not change."""


@dataclass(frozen=True, slots=True)
class _Term:
    """Holds the epoch of a term as controller."""

    epoch: int
    version: int  # of the epoch's node: the fencing token


class Controller:
    """Runs the controller. Every broker has one; only that of the elected broker can write."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        cluster: Cluster,
        config: ControllerConfig,
        log_defaults: LogConfig,
        clock: Clock,
        rng: random.Random,
        node_id: int,
        slices: LoopSlices | None = None,
    ) -> None:
        self.config = config
        self.log_defaults = log_defaults  # the owner replaces it when the broker's own settings change
        self._store, self._cluster = store, cluster
        self._clock, self._rng, self._node_id = clock, rng, node_id
        self._term: _Term | None = None
        self._known: dict[int, int] = {}  # brokers whose life has been taken notice of: node id -> epoch
        self._slices = slices or LoopSlices()
        self._takes_part = False
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- Broker lifecycle

    async def start(self, broker: layout.BrokerRegistration) -> None:
        """Make the broker known, stand for election, and take part from then on.

        Call once, after `membership.join_cluster`. When it returns the cluster snapshot is loaded and, if this broker
        is the controller, every partition it can lead has a leader. Raises `membership.BrokerIdInUse`.
        """
        await self._elect_self(membership.registration(broker))
        if self._term is None:
            await membership.register(self._store, broker)
        view = await self._cluster.load()
        self._cluster.subscribe(self._on_change)
        if self._term is not None:
            self._known = {node: alive.epoch for node, alive in view.brokers.items() if node != self._node_id}
            await self._elect_for_dead_leaders()
        self._takes_part = True

    async def close(self) -> None:
        """Stop reacting. The session's end, which is the store's matter, says goodbye."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_active(self) -> bool:
        """Return whether this broker is the controller, as far as it knows."""
        return self._term is not None

    async def _elect_self(self, *together: Op) -> None:
        """Become controller, with `together` in the same commit; change nothing if there is a controller."""
        node = await self._store.get(layout.CONTROLLER_EPOCH)
        epoch = layout.decode_epoch(node.value) + 1 if node else 1
        text = layout.encode_epoch(epoch)
        write = Put(layout.CONTROLLER_EPOCH, text, node.version) if node else Create(layout.CONTROLLER_EPOCH, text)
        me = Create(layout.CONTROLLER, layout.encode_controller(self._node_id, self._clock.wall_ms()), ephemeral=True)
        try:
            *_, version = await self._store.commit([*together, me, write])
        except StoreError as error:
            if isinstance(error, NodeExists) and error.path not in {layout.CONTROLLER, layout.CONTROLLER_EPOCH}:
                raise membership.BrokerIdInUse(f"a live broker already has the id {self._node_id}") from None
            if isinstance(error, SessionLost):
                raise
            return  # another broker was elected
        self._term = _Term(epoch, version)
        log.info("became controller", extra={"node_id": self._node_id, "controller_epoch": epoch})

    def _on_change(self, old: ClusterView, new: ClusterView) -> None:
        if self._term is not None and new.controller_epoch > self._term.epoch:
            self._resign()
        if not self._takes_part:  # `start` is still running
            return
        if new.controller_id == NO_LEADER or (self._term is not None and old.brokers is not new.brokers):
            task = asyncio.get_running_loop().create_task(self._react(), name="controller")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _react(self) -> None:
        """React to a change of brokers or a missing controller, outside the refresh, which would wait for this."""
        try:
            if self._term is None:
                await self._elect_self()
                if self.is_active:
                    view = await self._cluster.sync()
                    self._known = {node: broker.epoch for node, broker in view.brokers.items()}
                    await self._elect_for_dead_leaders()
            else:
                await self._handle_broker_changes()
        except (KafkaError, StoreError) as error:
            log.warning("the controller failed to handle a change of brokers: %r", error)

    async def _elect_for_dead_leaders(self) -> None:
        """Elect leaders for partitions whose leader is dead, as a new controller."""
        view = self._cluster.current
        named = {
            node
            for topic in view.topics.values()
            for partition in topic.partitions
            for node in (partition.leader, *partition.isr)
        }
        await self._handle_broker_changes(gone=frozenset(named - view.brokers.keys() - {NO_LEADER}))

    async def _handle_broker_changes(self, gone: frozenset[int] = frozenset()) -> None:
        alive = {node: broker.epoch for node, broker in self._cluster.current.brokers.items()}
        gone |= self._known.keys() - alive.keys()
        started = sorted(node for node, epoch in alive.items() if self._known.get(node) != epoch)
        self._known = alive
        events: list[Event] = [BrokersGone(gone)] if gone else []
        for outcome in await self._change([*events, *map(BrokerStarted, started)]):
            if isinstance(outcome, KafkaError):
                raise outcome

    def _resign(self) -> None:
        if self._term is not None:
            log.info("no longer controller", extra={"node_id": self._node_id, "controller_epoch": self._term.epoch})
        self._term = None

    # ---- Requests

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        assignments: Sequence[tuple[int, Sequence[int]]] = (),
        configs: dict[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> TopicView:
        """Create one topic; see `create_topics`. Raises the `KafkaError`."""
        event = CreateTopic(name, partitions, replication_factor, assignments, configs or {})
        (outcome,) = await self.create_topics([event], validate_only=validate_only)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    async def create_topics(
        self, topics: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[TopicView | KafkaError]:
        """Create topics in one commit; returns each topic or its error.

        Returns when the topics accept produce requests. With `validate_only` nothing is written.
        """
        default = self.config.num_partitions
        if (
            sum([_new_partitions(event, default) async for event in self._slices.each(topics)])
            > PARTITIONS_PER_REQUEST_MAX
        ):
            return [too_many_partitions()] * len(topics)
        drawn = [
            event._replace(topic_id=random_topic_id(), start=self._rng.randrange(1 << 16))
            async for event in self._slices.each(topics)
        ]
        outcomes = await self._change(drawn, validate_only=validate_only)
        created: list[TopicView | KafkaError] = []
        for outcome in outcomes:
            assert isinstance(outcome, TopicView | KafkaError), "a creation results in the topic"
            created.append(outcome)
        return created

    async def create_partitions(
        self, topics: Sequence[CreatePartitions], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Add partitions; returns None or an error for each topic."""
        present = self._cluster.current.topics
        more = sum(
            max(event.total - len(known.partitions), 1) for event in topics if (known := present.get(event.name))
        )
        if more > PARTITIONS_PER_REQUEST_MAX:
            return [too_many_partitions()] * len(topics)
        drawn = [event._replace(start=self._rng.randrange(1 << 16)) async for event in self._slices.each(topics)]
        return _errors(await self._change(drawn, validate_only=validate_only))

    async def delete_topics(self, names: Sequence[str]) -> list[KafkaError | None]:
        """Delete topics and their records; returns None or an error for each name."""
        return _errors(await self._change([DeleteTopic(name) for name in names]))

    async def alter_configs(
        self, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change settings; returns None or an error for each entity. No entity may occur twice."""
        return _errors(await self._change(changes, validate_only=validate_only))

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, changes: Sequence[ProposedIsr]
    ) -> list[AlteredPartition | KafkaError]:
        """Change ISRs as a leader proposes; returns the new state or an error of each. Raises `StaleBrokerEpoch`."""
        (outcome,) = await self._change([AlterPartition(broker_id, broker_epoch, changes)])
        if isinstance(outcome, KafkaError):
            raise outcome
        assert isinstance(outcome, list), "one outcome for each change"
        return [each for each in outcome if each is not None]

    async def elect_leaders(self, election: Election, partitions: Sequence[TopicPartition]) -> list[KafkaError | None]:
        """Elect leaders on request; returns None or an error for each partition."""
        (outcome,) = await self._change([ElectLeaders(election, partitions)])
        return _outcomes(outcome)

    async def reassign(
        self, reassignments: Sequence[Reassignment], *, allow_factor_change: bool = True
    ) -> list[KafkaError | None]:
        """Start, replace or cancel reassignments; returns None or an error for each."""
        (outcome,) = await self._change([Reassign(reassignments, allow_factor_change)])
        return _outcomes(outcome)

    def list_reassignments(self, partitions: Sequence[TopicPartition] | None = None) -> list[RunningReassignment]:
        """List the reassignments that are running, of all or of some partitions."""
        if self._term is None:
            raise NotController
        return running_reassignments(self._cluster.current, partitions)

    # ---- Decisions and commits

    async def _change(self, events: Sequence[Event], *, validate_only: bool = False) -> list[Outcome | KafkaError]:
        """Decide each event on the result of the previous ones; write all decisions in one commit."""
        async with self._one_at_a_time:
            for _ in range(_ATTEMPTS_MAX):
                term, ops, outcomes = await self._decide(events)
                if validate_only or not ops:
                    return outcomes
                conflict = await self._write(term, ops)
                if conflict is None:
                    return outcomes
                await self._cluster.sync()
            raise RequestTimedOut("the metadata store changed faster than a decision could be written")

    async def _decide(self, events: Sequence[Event]) -> tuple[_Term, list[Op], list[Outcome | KafkaError]]:
        """Decide in slices of the loop's time; what changes meanwhile makes the write fail, not the decision wrong."""
        term = self._term
        if term is None:
            raise NotController
        overlay = Overlay(self._cluster.current, Rules(self.config, self.log_defaults, term.epoch))
        outcomes: list[Outcome | KafkaError] = []
        async for event in self._slices.each(events, EVENT_WORK):
            try:
                if _partitions_of(overlay, event) > PARTITIONS_ON_LOOP_MAX:
                    outcomes.append(await asyncio.to_thread(apply, overlay, event))
                else:
                    outcomes.append(apply(overlay, event))
            except KafkaError as error:
                outcomes.append(error)
        return term, overlay.ops(), outcomes

    async def _write(self, term: _Term, ops: Sequence[Op]) -> str | None:
        """Commit in this term and wait for all subscribers. Returns the path of a conflict, if any."""
        if self._term is not term:
            raise NotController
        try:
            await self._store.commit([Check(layout.CONTROLLER_EPOCH, term.version), *ops])
        except SessionLost:
            self._resign()
            raise NotController from None
        except StoreError as error:
            if error.path == layout.CONTROLLER_EPOCH:
                self._resign()
                raise NotController from None
            return error.path
        # Shielded: a cancelled request must not leave the broker without the replicas that the store now lists.
        await asyncio.shield(asyncio.ensure_future(self._cluster.refresh()))
        return None


def _errors(outcomes: Sequence[Outcome | KafkaError]) -> list[KafkaError | None]:
    return [outcome if isinstance(outcome, KafkaError) else None for outcome in outcomes]


def _outcomes(outcome: Outcome | KafkaError) -> list[KafkaError | None]:
    assert isinstance(outcome, list), "one outcome for each partition"
    return [each if isinstance(each, KafkaError) else None for each in outcome]


def _new_partitions(event: CreateTopic, default: int) -> int:
    """Return the number of partitions that an event creates; 1 if it is invalid and will be refused."""
    if event.assignments:
        return len(event.assignments)
    return max(default if event.partitions == BROKER_DEFAULT else event.partitions, 1)


def _partitions_of(overlay: Overlay, event: Event) -> int:
    """Estimate the number of partitions that a decision concerns."""
    match event:
        case CreateTopic():
            return _new_partitions(event, 1)
        case CreatePartitions(name, total):
            return max(total, 0) if overlay.topic(name) is not None else 0
        case DeleteTopic(name):
            topic = overlay.topic(name)
            return len(topic.partitions) if topic is not None else 0
        case _:
            return 0
