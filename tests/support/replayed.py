"""Compares the state of coordinators of groups with a replay of the records that they wrote, after every step.

Each shard has a replica that is never asked anything: what the shard loads and what becomes durable is decoded and
applied to it as at a start. A change of the shard's state that no record describes, or another one than the record says,
is found at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import fields
from itertools import chain
from typing import Any

import pytest

from ottla.core.ids import NO_PRODUCER_ID, OFFSETS_TOPIC, TopicPartition
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.consumer import records as consumer_records
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.offsets import CommittedOffset, GroupOffsets
from ottla.groups.shard import GroupShard
from ottla.groups.share import records as share_records
from ottla.groups.share.group import ShareGroup
from ottla.internal_topics.coordinator_partition import Term
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords, ProducerIdentity
from tests.support.topic_logs import MemoryTopicLog


def replay_consumer_group(group: ConsumerGroup, log: Iterable[KeyValue]) -> ConsumerGroup:
    """Apply a log to a new group."""
    for key, value in log:
        if consumer_records.is_consumer_group(key):
            group.apply(consumer_records.decode(key, value))
    return group


def replay_share_group(group: ShareGroup, log: Iterable[KeyValue]) -> ShareGroup:
    """Apply a log to a new group."""
    for key, value in log:
        if share_records.is_share_group(key):
            group.apply(share_records.decode(key, value))
    return group


def compacted(log: Iterable[KeyValue]) -> list[KeyValue]:
    """The last record of each key, as compaction leaves them."""
    last: dict[bytes, bytes | None] = {}
    for key, value in log:
        last.pop(key, None)
        last[key] = value
    return list(last.items())


class ConsumerGroupReplay:
    """Replays a growing log of a consumer group, each record once."""

    def __init__(self) -> None:
        self._group, self._replayed = ConsumerGroup("team"), 0

    def group(self, log: Sequence[KeyValue], undurable: Sequence[KeyValue]) -> ConsumerGroup:
        """The group after the log and what is not durable yet."""
        replay_consumer_group(self._group, log[self._replayed :])
        self._replayed = len(log)
        group = self._group
        if undurable:
            group = copy(group)
            for each in fields(group):
                value = getattr(group, each.name)
                if isinstance(value, dict | set):
                    setattr(group, each.name, value.copy())
            group.owners = {topic_id: owners.copy() for topic_id, owners in group.owners.items()}
            replay_consumer_group(group, undurable)
        return group


def undurable(machine: Any) -> list[KeyValue]:
    """The records of a modern group that are being written, and those that are not yet."""
    return [*chain.from_iterable(records for records, _ in machine._in_flight.values()), *machine._records]


Pending = tuple[int, CommittedOffset, bool]
"""The producer of an open transaction, its offset, and whether that is later than the committed one."""

Offsets = tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, list[Pending]]]


def content_of(offsets: GroupOffsets) -> Offsets:
    """The committed offsets, and those of open transactions, of each partition in the order of the log."""
    entries = sorted(
        (entry.order, producer_id, where, entry.committed)
        for producer_id, written in offsets._pending.items()
        for where, entry in written.items()
    )
    pending: dict[TopicPartition, list[Pending]] = {}
    for order, producer_id, where, committed in entries:
        is_later = order > offsets._orders.get(where, -1)
        pending.setdefault(where, []).append((producer_id, committed, is_later))
    return dict(offsets.items()), pending


def offsets_of(shard: GroupShard) -> dict[str, Offsets]:
    """The offsets of all groups that have some."""
    found = {runtime.group_id: content_of(runtime.offsets) for runtime in shard._groups.values()}
    return {group_id: content for group_id, content in found.items() if content != ({}, {})}


def whole_of(shard: GroupShard, skipped: set[str]) -> dict[str, object]:
    """What the log must say of each group: its offsets, and the group without its soft state."""
    found: dict[str, object] = {}
    for group_id, runtime in shard._groups.items():
        group = runtime.group
        offsets = content_of(runtime.offsets)
        persistent: object = None
        if isinstance(group, ClassicGroup):
            persistent = group.stored
        elif isinstance(group, ConsumerGroup | ShareGroup) and group.is_in_log:
            persistent = group
        if group_id not in skipped and (persistent is not None or offsets != ({}, {})):
            found[group_id] = persistent, offsets
    return found


def unsettled(shard: GroupShard) -> set[str]:
    """The groups of which something is not written, or whose transaction may have a marker that is not applied."""
    return {
        runtime.group_id
        for runtime in shard._groups.values()
        if runtime.offsets.has_open_transactions
        or runtime._unwritten
        or (not isinstance(runtime.machine, ClassicMachine) and undurable(runtime.machine))
    }


_APPLY = GroupShard.apply


class Replicas:
    """The replicas of all shards of one test. `steps` counts the comparisons.

    Differences are collected: what is raised in a step of a coordinator has its partition loaded again.
    """

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.differences: list[str] = []
        self._replicas: dict[GroupShard, GroupShard] = {}

    def begin(self, shard: GroupShard) -> None:
        """The shard begins to load."""
        self._replicas[shard] = self._new(shard)

    def _new(self, shard: GroupShard) -> GroupShard:
        term = Term(shard.partition, shard.leader_epoch, lambda: None, lambda step: None, asyncio.Lock())
        replica = GroupShard(term, shard._config, MemoryTopicLog(), shard._clock, shard._cluster)
        replica.stop(refuse_writes=True)
        return replica

    def apply(self, shard: GroupShard, what: str, loaded: LoadedRecords) -> None:
        """Records of the shard's partition are durable."""
        replica = self._replicas.get(shard)
        if replica is not None:
            _APPLY(replica, loaded)
            self._compare(what, shard, offsets_of(shard), offsets_of(replica))

    def stopped(self, shard: GroupShard) -> None:
        """The shard stops: if it writes nothing now, its groups and offsets are those of the log."""
        log = shard._partition._topic_log
        is_idle = shard.is_ready and not shard._partition.writer._is_active
        if shard not in self._replicas or not is_idle or not isinstance(log, MemoryTopicLog) or log.has_lied:
            return
        replica = self._new(shard)
        for batch in log.batches[shard.partition]:
            _APPLY(replica, batch)
        skipped = unsettled(shard) | unsettled(replica)
        self._compare("the last step", shard, whole_of(shard, skipped), whole_of(replica, skipped))

    def _compare(self, what: str, shard: GroupShard, live: object, replayed: object) -> None:
        self.steps[what] += 1
        if live != replayed:
            place = f"{what} of {OFFSETS_TOPIC}-{shard.partition}"
            self.differences.append(f"after {place}: {live} is held, the log says {replayed}")


def hold_equal_to_replay(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    """Compare all shards of a test with their replicas from now on."""
    replicas = Replicas()
    begin_load, write, apply_marker = GroupShard.begin_load, GroupShard._write, GroupShard.apply_marker
    stop = GroupShard.stop

    def begun(shard: GroupShard) -> GroupShard:
        replicas.begin(shard)
        return begin_load(shard)

    def loading(shard: GroupShard, loaded: LoadedRecords) -> None:
        _APPLY(shard, loaded)
        replicas.apply(shard, "a loaded batch", loaded)

    async def written(
        shard: GroupShard, pairs: Sequence[KeyValue], finish: Any, producer: ProducerIdentity | None = None
    ) -> None:
        def finished(*, stored: bool) -> None:
            finish(stored=stored)
            replicas.apply(shard, "a write", LoadedRecords(pairs if stored else (), producer))

        await write(shard, pairs, finished, producer)

    def marked(shard: GroupShard, producer_id: int, *, commit: bool) -> list[GroupRuntime]:
        ended = apply_marker(shard, producer_id, commit=commit)
        assert producer_id != NO_PRODUCER_ID
        if shard.is_ready:  # otherwise it is among what is loaded
            replicas.apply(shard, "a marker", LoadedRecords((), ProducerIdentity(producer_id, 0), commit))
        return ended

    def stopping(shard: GroupShard, *, refuse_writes: bool) -> None:
        replicas.stopped(shard)
        stop(shard, refuse_writes=refuse_writes)

    monkeypatch.setattr(GroupShard, "begin_load", begun)
    monkeypatch.setattr(GroupShard, "stop", stopping)
    monkeypatch.setattr(GroupShard, "apply", loading)
    monkeypatch.setattr(GroupShard, "_write", written)
    monkeypatch.setattr(GroupShard, "apply_marker", marked)
    return replicas
