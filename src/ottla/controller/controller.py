"""Applies the decisions of the controller's state machine with conditional writes, one change at a time.

One broker of the cluster is the controller: the one whose session holds `/controller`. Every write checks that no other
broker has become controller since. A change returns when it is in `MetadataCache.current` and all subscribers have
acted on it: a created topic accepts produce requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.controller.admin_znodes import AdminRequests
from ottla.controller.broker_changes import (
    HandledBrokers,
    broker_events,
    elections_missing,
    handled_after,
    is_any_restored,
)
from ottla.controller.config import ControllerConfig
from ottla.controller.config_changes import AlterConfig, publish_min_isr
from ottla.controller.election_events import ContradictoryStates, ElectLeaders, NoteBrokers, imbalanced
from ottla.controller.elections import Election
from ottla.controller.event_work import alter_in_slices, index_partitions, new_partitions, partitions_of, work_of
from ottla.controller.failed_decisions import DecisionFailed, DecisionRefused, FailedDecisions
from ottla.controller.isr import AlterPartition, AlterPartitionResult, ProposedIsr
from ottla.controller.machine import DecidedEvent, Event, Outcome, apply, errors_of, outcomes_of
from ottla.controller.overlay import UNCLEAN_ELECTION, Overlay, Rules
from ottla.controller.reassignments import Reassign, RequestedReassignment, RunningReassignment, running_reassignments
from ottla.controller.security_admin import SecurityAdmin
from ottla.controller.terms import CommitOutcome, ControllerTerm, become_controller, give_up_controller, write_in_term
from ottla.controller.topics import (
    BROKER_DEFAULT,
    PARTITIONS_PER_REQUEST_MAX,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FinishDeletion,
    too_many_partitions,
)
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NotController, RequestTimedOut, StorageError
from ottla.core.events import EventKind, EventLog
from ottla.core.ids import TopicPartition, random_topic_id
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, TopicView
from ottla.metadata_store.logged_wait import LoggedWait
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import (
    Create,
    MetadataStore,
    NodeExists,
    NoSuchNode,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    SessionStatus,
    StoreError,
    VersionConflict,
)
from ottla.storage.config import LogConfig

if TYPE_CHECKING:  # imported when this broker stops
    from ottla.controller.controlled_shutdown import ControlledShutdown

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 20
"""Bound on retries of a change after conflicting writes; only a faulty store could need more."""

PARTITIONS_ON_LOOP_MAX = 100
"""A decision about more of them is made in a thread: nothing else uses the overlay meanwhile."""

ELECTIONS_PER_BALANCE = 1_000
"""Leaders moved in one step of the automatic balance, as in Kafka."""

SETTLE_S = 0.05
"""Pause after the end of a term or a session before the broker looks again whether there is a controller."""

RETRY_S = 1.0
"""Pause after a failure of the store before the controller acts on the same changes again."""


class Controller:
    """Runs the controller. Every broker has one; only that of the elected broker can write."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        cluster: MetadataCache,
        config: ControllerConfig,
        log_defaults: LogConfig,
        clock: Clock,
        rng: random.Random,
        node_id: int,
        slices: LoopSlices | None = None,
        events: EventLog | None = None,
    ) -> None:
        self.config = config
        self.log_defaults = log_defaults  # the owner replaces it when the broker's own settings change
        self._store, self._cluster = store, cluster
        self._clock, self._rng, self._node_id = clock, rng, node_id
        self._events = events
        self._registration: znodes.BrokerRegistration | None = None
        self._announcing: set[asyncio.Task[None]] = set()
        self._report: znodes.ReplicaReport | None = None
        self._term: ControllerTerm | None = None
        self._handled = HandledBrokers({})
        self._noted: Mapping[int, int] | None = None  # what the store has about `_handled`; None: it has no node
        self._slices = slices or LoopSlices()
        self._takes_part = False
        self._one_at_a_time = asyncio.Lock()
        self._changing: asyncio.Task[list[Outcome | KafkaError]] | None = None
        self._finishing = asyncio.Lock()
        self._reacting: asyncio.Task[None] | None = None
        self._is_stale = False  # there are changes on which the controller has not acted
        self._finishes_deletions = False  # a topic is gone: Kafka's tools may have begun its deletion
        self._admin_requests = AdminRequests(
            store, view=lambda: cluster.current, reassign=self.reassign, elect_leaders=self.elect_leaders
        )
        self.security = SecurityAdmin(store, self._change)
        self._has_requests = False  # of Kafka's older tools
        self._elects_missing = False  # an earlier change may let partitions without leader have one
        self._shutdown: ControlledShutdown | None = None  # once it has begun
        self._contradictory = ContradictoryStates()
        self._failed = FailedDecisions(clock)
        self._pause_s = 0.0  # before this broker stands for election, after a failure
        self._malformed: set[str] = set()  # paths of nodes without which there is no controller
        self._tasks: list[asyncio.Task[None]] = []

    # ---- Broker lifecycle

    async def start(
        self, broker: znodes.BrokerRegistration, report: znodes.ReplicaReport | None = None, *, wait_s: float = 0.0
    ) -> None:
        """Make the broker known, stand for election, and take part from then on.

        Call once, after `broker_registration.join_cluster`. When it returns the cluster snapshot is loaded, this broker
        is in it and, if it is the controller, every partition it can lead has a leader. `report` is written with the
        registration, so that no election comes between. The registration of a broker with the same id and address may
        be that of an earlier run: it may expire within `wait_s`. Raises `broker_registration.BrokerIdInUse`.
        """
        self._registration, self._report = broker, report
        await self._enter_cluster(wait_s)
        self._cluster.subscribe(self._on_change)
        self._is_stale = self._cluster.current.controller_id == NO_LEADER
        if self._term is not None:
            # A term that has ended already: from here on it reacts to the next.
            with contextlib.suppress(NotController, SessionLost):
                await self._take_over(self._term)
        self._takes_part = True
        self._wake()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow_session(), name="controller's session")]
        if self.config.auto_leader_rebalance:
            self._tasks.append(loop.create_task(self._balance_leaders(), name="balance leaders"))

    async def close(self) -> None:
        """Stop reacting. The session's end, which is the store's matter, says goodbye."""
        self._takes_part = False
        if self._term is not None and not self._term.is_followed.is_set():
            self._resign()  # nothing is decided in it any more
        tasks = [
            *self._tasks,
            *self._announcing,
            *(each for each in (self._reacting, self._changing) if each is not None),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _enter_cluster(self, wait_s: float) -> None:
        """Register the broker and load the first snapshot that it is in: both in one session. Raises `BrokerIdInUse`.

        A session that is lost meanwhile is renewed: the registration has ended with it.
        """
        while True:
            try:
                with LoggedWait("this broker's registration") as waiting:
                    await self._register(wait_s, waiting)
                with LoggedWait("the first snapshot of the cluster"):
                    await self._cluster.load()
                    while self._node_id not in self._cluster.current.brokers:
                        await asyncio.sleep(SETTLE_S)
                        await self._cluster.sync()
            except SessionLost:
                self._term = None
                with LoggedWait("another session with the metadata store"):
                    await self._store.renew()
            else:
                return

    async def _register(self, wait_s: float, waiting: LoggedWait | None = None) -> None:
        """Register the broker, as controller if there is none. Raises `BrokerIdInUse`."""
        assert self._registration is not None, "`start` comes first"
        deadline = self._clock.monotonic() + wait_s
        while True:
            ops = await broker_registration.registration_with_report(self._store, self._registration, self._report)
            try:
                self._term = await become_controller(self._store, self._node_id, self._clock.wall_ms(), *ops)
                if self._term is None:
                    await broker_registration.register(self._store, ops)
            except NodeExists as error:
                if error.path != znodes.broker_path(self._node_id):
                    continue  # the report of an earlier run appeared meanwhile
                if self._clock.monotonic() >= deadline or not await broker_registration.has_same_address(
                    self._store, self._registration
                ):
                    text = f"a live broker already has the id {self._node_id}"
                    raise broker_registration.BrokerIdInUse(text) from None
                if waiting is not None:
                    waiting.reason = f"the session of the earlier run of broker {self._node_id} has to expire first"
                await asyncio.sleep(min(0.5, wait_s))
            except (VersionConflict, NoSuchNode):
                continue
            else:
                return

    async def _follow_session(self) -> None:
        """Resign after a lost session, and only then register again in another one."""
        state = self._store.state
        while True:
            while state.status is not SessionStatus.LOST:
                state = await self._store.next_state(state)
            self._takes_part = False
            self._record("the session with the metadata store is lost", EventKind.STORE_SESSION)
            self._resign()
            try:
                await self._repeat(self._store.renew, "a session with the metadata store was opened")
            except SessionLost:
                return  # the store was closed
            state = self._store.state  # the new one may be lost already
            try:
                await self._register_again()
                await self._repeat(self._cluster.load, "the cluster was read in another session")
            except SessionLost:
                continue
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(
                asyncio.get_running_loop().create_task(self._cluster.follow(), name="follow the cluster")
            )
            self._record("there is another session with the metadata store", EventKind.STORE_SESSION)
            self._takes_part = self._is_stale = True
            self._wake()

    async def _register_again(self) -> None:
        """Register until it succeeds. Raises `SessionLost`."""
        while True:
            try:
                await self._register(wait_s=math.inf)
            except SessionLost:
                raise
            except (StoreError, StorageError, broker_registration.BrokerIdInUse) as error:
                log.warning("the broker could not register after its session was lost and will try again: %s", error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("unexpected error while the broker registered again; trying again")
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _repeat(self, action: Callable[[], Awaitable[object]], what: str) -> None:
        """Repeat an action until it succeeds. Raises `SessionLost`."""
        while True:
            try:
                await action()
                return
            except SessionLost:
                raise
            except Exception:
                log.exception("unexpected error while %s; trying again", what)
                await asyncio.sleep(RETRY_S)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a session with the metadata store, and a connection: nothing is committed without."""
        return self._store.state.status is SessionStatus.CONNECTED

    @property
    def is_active(self) -> bool:
        """Return whether this broker is the controller, as far as it knows."""
        return self._term is not None

    def _resign(self) -> None:
        if self._term is not None:
            self._record(f"broker {self._node_id} is not the controller any more, controller epoch {self._term.epoch}")
            log.info("no longer controller", extra={"node_id": self._node_id, "controller_epoch": self._term.epoch})
            self._is_stale = True  # there may be no other
            self._term.is_followed.set()
        self._term = None
        self._wake()

    def _record(self, cause: str, kind: EventKind = EventKind.CONTROLLER) -> None:
        if self._events is not None:
            self._events.record(kind, cause, node=self._node_id)

    # ---- Reactions

    def _on_change(self, old: ClusterView, new: ClusterView) -> None:
        try:
            self._follow_change(old, new)
        except Exception:
            log.exception("unexpected error while the controller followed a change of the cluster; it reads all again")
            self._begin_again()

    def _begin_again(self) -> None:
        """Drop what the term knows beyond the snapshot, and take over again from the metadata store."""
        if self._term is not None:
            self._term.has_taken_over = False
        self._is_stale = True
        self._wake()

    def _follow_change(self, old: ClusterView, new: ClusterView) -> None:
        if self._shutdown is not None:
            self._shutdown.view_changed()
        term = self._term
        if term is not None and new.controller_epoch > term.epoch:
            self._resign()
            term = None
        if term is not None:
            if new.admin_requests and (old.admin_requests is not new.admin_requests or old.topics is not new.topics):
                self._has_requests = True
                self._wake()
            term.index.update(old, new)
            if old.topics is not new.topics:
                self._finishes_deletions |= len(new.topics) < len(old.topics)
                self._elects_missing |= is_any_restored(old, new)
                self._wake()
        if new.controller_id == NO_LEADER or (
            term is not None and (old.brokers is not new.brokers or old.replica_reports is not new.replica_reports)
        ):
            self._is_stale = True
            self._wake()

    def _wake(self) -> None:
        """React outside the refresh, which would wait for this."""
        if self._has_work and self._takes_part and (self._reacting is None or self._reacting.done()):
            self._reacting = asyncio.get_running_loop().create_task(self._react(), name="controller")

    @property
    def _has_work(self) -> bool:
        return self._is_stale or self._elects_missing or self._finishes_deletions or self._has_requests

    async def _react(self) -> None:
        """React to changes of brokers or to a missing controller, until there is nothing more to do."""
        while self._takes_part and self._has_work:
            self._is_stale = self._finishes_deletions = self._has_requests = False
            try:
                if self._term is not None and not self._term.has_taken_over:
                    await self._take_over(self._term)
                elif self._term is not None:
                    await self._handle_broker_changes(self._term)
                    await self._finish_deletions()
                    await self._admin_requests.serve()
                elif self._cluster.current.controller_id == NO_LEADER:
                    pause_s, self._pause_s = self._pause_s, 0.0
                    await asyncio.sleep(pause_s)
                    self._term = await become_controller(self._store, self._node_id, self._clock.wall_ms())
                    if self._term is not None:
                        await self._take_over(self._term)
                    else:
                        view = await self._cluster.sync()
                        if view.controller_id == NO_LEADER:  # it was decided on a stale read, or the node is malformed
                            self._is_stale = True
                            await asyncio.sleep(SETTLE_S)
                elif self._cluster.current.controller_id == self._node_id:
                    self._is_stale = await give_up_controller(self._store, self._node_id)
                    await self._cluster.sync()
            except (NotController, SessionLost):  # there is another controller, or there will be one
                await asyncio.sleep(SETTLE_S)
            except DecisionRefused as refused:
                self._is_stale = True
                await asyncio.sleep(refused.delay_s)
            except (KafkaError, StoreError) as error:
                log.warning("the controller failed to handle a change of brokers and will try again: %r", error)
                self._is_stale = True
                await asyncio.sleep(RETRY_S)
            except znodes.MalformedNode as error:
                if error.path not in self._malformed:
                    self._malformed.add(error.path)
                    log.error(  # noqa: TRY400 - the message says all
                        "there is no controller before this node has its value again; restore it with ZooKeeper's "
                        "shell: %s",
                        error,
                    )
                self._is_stale = True
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("unexpected error of the controller while it handled a change of brokers; trying again")
                self._is_stale = True
                await asyncio.sleep(RETRY_S)
            if self._term is None:
                self._elects_missing = False

    async def _take_over(self, term: ControllerTerm) -> None:
        """Begin a term: find what happened without a controller, and act on it."""
        await self._cluster.sync()
        term.is_followed.set()
        self._record(f"broker {self._node_id} is the controller, controller epoch {term.epoch}")
        node = await self._store.get(znodes.HANDLED_BROKERS)
        try:
            self._noted = znodes.decode_handled_brokers(node.value) if node else None
        except znodes.MalformedNode as error:
            log.warning("every broker counts as started again: %s", error)
            self._noted = {}
        self._handled = HandledBrokers(self._noted or {})
        await self._index_partitions(term)
        self._elects_missing = True
        await self._handle_broker_changes(term, gone=term.index.brokers())
        await self._finish_deletions()
        await self._admin_requests.serve()
        term.has_taken_over = True

    async def _index_partitions(self, term: ControllerTerm) -> None:
        """Build the index of a term in slices; what changed meanwhile is applied at the end."""
        view = self._cluster.current
        index = await index_partitions(view, self._slices)
        index.update(view, self._cluster.current)
        term.index = index

    async def _handle_broker_changes(self, term: ControllerTerm, gone: Iterable[int] = ()) -> None:
        elects_missing, self._elects_missing = self._elects_missing, False
        try:
            view = await self._cluster.sync() if elects_missing else self._cluster.current
        except BaseException:
            self._elects_missing = elects_missing
            raise
        events: list[Event] = list(broker_events(view, self._handled, term.index, gone))
        if elects_missing:
            await self._slices.yield_to_loop()  # each of the two looks at all partitions
            events += elections_missing(view)
        if len(view.brokers) > 1:
            events += publish_min_isr(view, self.log_defaults.min_insync_replicas)
        handled = handled_after(view)
        if self._noted != handled.epochs and (self._noted is not None or len(handled.epochs) > 1):
            events.append(NoteBrokers(handled.epochs, is_new=self._noted is None))
        try:
            await self._change(events)
            self._failed.check(events)
        except BaseException:
            self._elects_missing = elects_missing
            raise
        self._handled = handled
        if self._noted is not None or len(handled.epochs) > 1:
            self._noted = handled.epochs

    async def _balance_leaders(self) -> None:
        """Let preferred replicas lead again, from time to time, where brokers lead too few of their partitions."""
        while True:
            await asyncio.sleep(self.config.leader_imbalance_check_s)
            if self._term is None:
                continue
            names = imbalanced(self._cluster.current, self.config.leader_imbalance_percentage)
            try:
                for first in range(0, len(names), ELECTIONS_PER_BALANCE):
                    await self.elect_leaders(Election.PREFERRED, names[first : first + ELECTIONS_PER_BALANCE])
            except (KafkaError, StoreError) as error:
                log.warning("the controller failed to balance leaders and will try again: %r", error)
            except Exception:
                log.exception("unexpected error while leaders were balanced; trying again")

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
            sum([new_partitions(event, default) async for event in self._slices.each(topics)])
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
        return errors_of(await self._change(drawn, validate_only=validate_only))

    async def delete_topics(self, names: Sequence[str]) -> list[KafkaError | None]:
        """Delete topics and their records; returns None or an error for each name."""
        outcomes = errors_of(await self._change([DeleteTopic(name) for name in names]))
        try:
            await self._finish_deletions()
        except (NotController, StoreError):
            log.info("the next controller removes what is left of deleted topics")
        return outcomes

    async def _finish_deletions(self) -> None:
        """Remove what is left of topics whose deletion has begun: of large ones, or by an earlier controller."""
        async with self._finishing:
            begun = await self._store.children(znodes.TOPIC_DELETIONS)
            if not begun:
                return
            noted = {f"{znodes.DELETED_TOPICS}/{name}" for name in await self._store.children(znodes.DELETED_TOPICS)}
            for name in sorted(begun):
                nodes = await self._store.list_nodes(znodes.topic_path(name))
                config = znodes.topic_config_path(name)
                node = await self._store.get(config)
                if node is not None:
                    nodes = {**nodes, config: node}
                await self._change([FinishDeletion(name, nodes, noted)])

    async def alter_configs(
        self, changes: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change settings; returns None or an error for each entity. No entity may occur twice."""
        return errors_of(await self._change(changes, validate_only=validate_only))

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, changes: Sequence[ProposedIsr]
    ) -> list[AlterPartitionResult | KafkaError]:
        """Change ISRs as a leader proposes; returns the new state or an error of each. Raises `StaleBrokerEpoch`."""
        (outcome,) = await self._change([AlterPartition(broker_id, broker_epoch, changes)])
        if isinstance(outcome, KafkaError):
            raise outcome
        assert isinstance(outcome, list), "one outcome for each change"
        return [each for each in outcome if isinstance(each, AlterPartitionResult | KafkaError)]

    async def elect_leaders(self, election: Election, partitions: Sequence[TopicPartition]) -> list[KafkaError | None]:
        """Elect leaders on request; returns None or an error for each partition."""
        (outcome,) = await self._change([ElectLeaders(election, partitions)])
        return outcomes_of(outcome)

    async def reassign(
        self, reassignments: Sequence[RequestedReassignment], *, allow_factor_change: bool = True
    ) -> list[KafkaError | None]:
        """Start, replace or cancel reassignments; returns None or an error for each."""
        (outcome,) = await self._change([Reassign(reassignments, allow_factor_change)])
        return outcomes_of(outcome)

    def list_reassignments(self, partitions: Sequence[TopicPartition] | None = None) -> list[RunningReassignment]:
        """List the reassignments that are running, of all or of some partitions."""
        if self._term is None:
            raise NotController
        return running_reassignments(self._cluster.current, partitions)

    # ---- This broker's replicas

    async def report_replicas(self, report: znodes.ReplicaReport) -> None:
        """Replace the report that `start` has written. Raises `StoreError`."""
        path, text = znodes.replica_report_path(self._node_id), znodes.encode_replica_report(report)
        exists = await self._store.get(path) is not None
        await self._store.commit([Put(path, text) if exists else Create(path, text)])
        self._report = report

    def announce_cordoned(self, *, is_cordoned: bool) -> None:
        """Make known whether this broker takes new replicas, if that has changed."""
        if self._registration is not None and self._registration.is_cordoned != is_cordoned:
            self._registration = self._registration._replace(is_cordoned=is_cordoned)
            task = asyncio.get_running_loop().create_task(self._update_registration(), name="announce cordoned")
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)

    async def _update_registration(self) -> None:
        """Write what has changed in the registration. One that is made in a new session has it already."""
        path = znodes.broker_path(self._node_id)
        while (node := await self._store.get(path)) is not None and self._registration is not None:
            was = znodes.decode_broker(self._node_id, node.value)
            text = znodes.encode_broker(was._replace(is_cordoned=self._registration.is_cordoned))
            try:
                await self._store.commit([Put(path, text, node.version)])
            except (VersionConflict, OutcomeUnknown):
                continue
            except (NoSuchNode, SessionLost):
                pass  # the registration of the next session has it
            return

    # ---- Controlled shutdown of this broker

    async def shut_down(self, within_s: float) -> int:
        """Hand over what this broker leads before it stops; returns how many partitions others could take over yet."""
        from ottla.controller.controlled_shutdown import ControlledShutdown

        if self._registration is None:
            return 0
        self._shutdown = ControlledShutdown(self._store, self._cluster, self._clock, self._node_id)
        return await self._shutdown.run(self._registration, within_s)

    # ---- Decisions and commits

    async def _change(self, events: Sequence[Event], *, validate_only: bool = False) -> list[Outcome | KafkaError]:
        """Decide each event on the result of the previous ones and write all decisions; one call at a time.

        A call belongs to the term in which it is made, and waits until the snapshot has all from before the term: a
        refusal does not fail as a write does. After a conflict the events whose decisions were not all committed are
        decided again. A call that has begun is completed also if its caller is cancelled, whose
        client may be gone: nothing is written by halves.
        """
        term = self._term
        if term is None:
            raise NotController
        await term.is_followed.wait()
        await self._one_at_a_time.acquire()
        work = self._decide_and_write(term, events, validate_only=validate_only)
        change = self._changing = asyncio.get_running_loop().create_task(work, name="change of the cluster")
        change.add_done_callback(self._changed)
        return await asyncio.shield(change)

    def _changed(self, change: asyncio.Task[list[Outcome | KafkaError]]) -> None:
        self._one_at_a_time.release()
        if not change.cancelled():
            change.exception()  # seen: the caller may be gone
        if self._elects_missing:
            self._wake()

    async def _decide_and_write(
        self, term: ControllerTerm, events: Sequence[Event], *, validate_only: bool
    ) -> list[Outcome | KafkaError]:
        outcomes: dict[int, Outcome | KafkaError] = {}
        pending = dict(enumerate(events))
        for _ in range(_ATTEMPTS_MAX):
            if self._term is not term:
                raise NotController
            overlay, decided = await self._decide(term, pending)
            self._contradictory.log(overlay)
            outcomes.update((number, each.outcome) for number, each in decided.items())
            if validate_only or not overlay.size:
                break
            written = await self._write(term, overlay.commits())
            if self._events is not None and written.committed:
                from ottla.controller.change_events import record_changes

                record_changes(self._events, overlay, [pending[number] for number in decided])
            if written.conflict is None:
                break
            for number, event in decided.items():
                if event.end <= written.committed:
                    del pending[number]
                elif event.begin < written.committed and isinstance(event.outcome, TopicView):
                    del pending[number]  # the topic is there: its other partitions get their states later
                    self._elects_missing = True
            if not pending:
                break
            await self._cluster.sync()
        else:
            raise RequestTimedOut(
                f"in {_ATTEMPTS_MAX} attempts the node {written.conflict} of the metadata store did not have the "
                "expected state. Try again; if it stays so, inspect it with ZooKeeper's shell: another program wrote it"
            )
        return [outcomes[number] for number in range(len(events))]

    async def _decide(
        self, term: ControllerTerm, events: Mapping[int, Event]
    ) -> tuple[Overlay, dict[int, DecidedEvent]]:
        """Decide all events; one whose decision fails unexpectedly is refused, and the others are decided again."""
        while True:
            try:
                return await self._try_to_decide(term, events)
            except DecisionFailed as failed:
                self._failed.note(events[failed.number], failed.error, term.epoch)
                self._begin_again()

    async def _try_to_decide(
        self, term: ControllerTerm, events: Mapping[int, Event]
    ) -> tuple[Overlay, dict[int, DecidedEvent]]:
        """Decide in slices of the loop's time; what changes meanwhile makes the write fail, not the decision wrong."""
        overlay = Overlay(self._cluster.current, Rules(self.config, self.log_defaults, term.epoch))
        decided: dict[int, DecidedEvent] = {}
        for number, event in events.items():
            begin = overlay.size
            try:
                outcome = self._failed.refusal(event) or await self._outcome(overlay, event)
            except Exception as error:
                raise DecisionFailed(number, error) from error
            decided[number] = DecidedEvent(begin, overlay.size, outcome)
            if isinstance(event, AlterConfig) and not isinstance(outcome, KafkaError):
                self._elects_missing |= any(change.key == UNCLEAN_ELECTION for change in event.changes)
            if self._slices.spend(work_of(event)):
                await self._slices.yield_to_loop()
        return overlay, decided

    async def _outcome(self, overlay: Overlay, event: Event) -> Outcome | KafkaError:
        try:
            if isinstance(event, AlterPartition):
                return await alter_in_slices(overlay, event, self._slices)
            if partitions_of(overlay, event) > PARTITIONS_ON_LOOP_MAX:
                return await asyncio.to_thread(apply, overlay, event)
            return apply(overlay, event)
        except KafkaError as error:
            return error

    async def _write(self, term: ControllerTerm, commits: Sequence[Sequence[Op]]) -> CommitOutcome:
        """Write in this term and wait for all subscribers."""
        try:
            written = await write_in_term(self._store, term, commits)
        except NotController:
            if self._term is term:
                self._resign()
            raise
        except Exception as error:
            if isinstance(error, StoreError | KafkaError):
                raise
            self._pause_s = self._failed.note_write(error)
            if self._term is term:
                self._resign()
            raise NotController from error
        await self._cluster.refresh()
        return written
