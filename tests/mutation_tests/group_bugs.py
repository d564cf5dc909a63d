"""Lists bugs of the group coordinator, and the suites of random schedules that must find them."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_PRODUCER_ID
from ottla.groups.classic import validation
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.machine import Now
from ottla.groups.offsets import GroupOffsets
from ottla.groups.shard import GroupShard
from ottla.testing.sim_loop import simulate
from tests.coordinator_schedules.test_groups import rolling_trouble
from tests.coordinator_schedules.test_transactional_offsets import transactions
from tests.mutation_tests.patching import Bug, Patch
from tests.properties.test_group_machine import play
from tests.support.replayed import hold_equal_to_replay

Main = Callable[[random.Random], Coroutine[Any, Any, object]]


def schedules(main: Main, seed: int, within: int) -> tuple[int, str] | None:
    """Play schedules in simulated time; returns how many it took and what was wrong."""
    for count in range(within):
        try:
            simulate(main, seed=seed + count)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever the bug led to
            return count + 1, f"{type(error).__name__}: {error}"
    return None


def beside_replay(seed: int, within: int) -> tuple[int, str] | None:
    """Play schedules of transactional offsets, and compare each step with the replay of the records."""
    for count in range(within):
        with pytest.MonkeyPatch.context() as patch:
            replicas = hold_equal_to_replay(patch)
            with suppress(AssertionError):  # the schedule may see it too, at its end
                simulate(partial(transactions, 0.0), seed=seed + count)
        if replicas.differences:
            return count + 1, replicas.differences[0]
    return None


def walks(seed: int, within: int) -> tuple[int, str] | None:
    """Play random events on the state machine of a classic group."""
    for count in range(within):
        try:
            play(random.Random(seed + count))
        except Exception as error:  # noqa: BLE001 - whatever the bug led to
            return count + 1, f"{type(error).__name__}: {error}"
    return None


GROUP_SUITES: dict[str, Callable[[int, int], tuple[int, str] | None]] = {
    "classic group machine": walks,
    "groups in simulated time": partial(schedules, partial(rolling_trouble, 0.2)),
    "transactional offsets in simulated time": partial(schedules, partial(transactions, 0.0)),
    "groups beside their replay": beside_replay,
}


# ---- The bugs

Original = Callable[..., Any]


def _without_generation(_: Original) -> Original:
    def validate(group: ClassicGroup, beat: Any) -> ErrorCode:
        return group.validate_member(beat.member_id, beat.instance_id)

    return validate


def _without_fence(_: Original) -> Original:
    def validate(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        known = member_id in group.members.by_id or instance_id in group.members.by_instance
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID

    return validate


def _replaced_member_keeps_its_place(original: Original) -> Original:
    def fail(machine: ClassicMachine, member_id: str, error: ErrorCode) -> None:
        if error is not ErrorCode.FENCED_INSTANCE_ID:
            original(machine, member_id, error)

    return fail


def _acknowledged_first(_: Original) -> Original:
    async def write(of: GroupShard, pairs: Any, finish: Any, producer: Any = None) -> None:
        of._partition.writer.write(pairs, lambda error: finish(stored=error is ErrorCode.NONE), producer=producer)

    return write


def _announced_first(original: Original) -> Original:
    def store(machine: ClassicMachine, why: Any) -> None:
        original(machine, why)
        if hasattr(why, "assignments"):
            for name, assignment in why.assignments.items():
                machine._members.by_id[name].assignment = assignment
            machine._answer_syncs(ErrorCode.NONE, Now(0, 0))

    return store


def _pending_is_visible(original: Original) -> Original:
    def apply(offsets: GroupOffsets, change: Any, *, producer_id: int = NO_PRODUCER_ID) -> None:
        original(offsets, change, producer_id=NO_PRODUCER_ID)

    return apply


def _tombstone_leaves_pending(original: Original) -> Original:
    def apply(offsets: GroupOffsets, change: Any, *, producer_id: int = NO_PRODUCER_ID) -> None:
        pending, offsets._pending = offsets._pending, {}
        original(offsets, change, producer_id=producer_id)
        for each, more in offsets._pending.items():
            pending.setdefault(each, {}).update(more)
        offsets._pending = pending

    return apply


def _abort_commits(original: Original) -> Original:
    return lambda offsets, producer_id, *, commit: original(offsets, producer_id, commit=True)


def _transaction_always_wins(original: Original) -> Original:
    def end(offsets: GroupOffsets, producer_id: int, *, commit: bool) -> None:
        offsets._orders.clear()
        original(offsets, producer_id, commit=commit)

    return end


def _markers_are_skipped(original: Original) -> Original:
    return lambda shard, loaded: original(shard, loaded) if loaded.commits is None else None


def _changed_without_a_record(original: Original) -> Original:
    def written(of: GroupShard, runtime: Any, change: Any, *args: Any, stored: bool) -> None:
        original(of, runtime, change, *args, stored=stored)
        if not stored or not runtime.offsets._pending:
            return
        for where in change:
            runtime.offsets._committed.pop(where, None)

    return written


async def _at_once(*args: object) -> None:
    """Instead of waiting for what is being written."""


def _bug(name: str, what: str, suite: str, *patches: Patch, seed: int = 1, within: int = 60) -> Bug:
    return Bug(name, what, suite, patches, seed, within)


GROUP_BUGS = (
    _bug("generation-not-checked", "heartbeats and commits of an old generation are accepted", "classic group machine",
         Patch(validation, "validate_heartbeat", _without_generation)),
    _bug("static-member-not-fenced", "a static member that was replaced is still accepted", "classic group machine",
         Patch(ClassicGroup, "validate_member", _without_fence)),
    _bug("replaced-member-left-waiting", "requests of a replaced static member are not answered", "classic group machine",
         Patch(ClassicMachine, "_fail_waiting", _replaced_member_keeps_its_place)),
    _bug("assignment-announced-before-durable", "members get their assignment before it is durable", "classic group machine",
         Patch(ClassicMachine, "_store", _announced_first)),
    _bug("commit-acknowledged-before-durable", "a commit is acknowledged before it is durable", "groups in simulated time",
         Patch(GroupShard, "_write", _acknowledged_first)),
    _bug("pending-offset-visible", "offsets of an open transaction are visible", "transactional offsets in simulated time",
         Patch(GroupOffsets, "apply", _pending_is_visible)),
    _bug("aborted-offset-visible", "an abort marker makes offsets visible", "transactional offsets in simulated time",
         Patch(GroupOffsets, "end_transaction", _abort_commits)),
    _bug("deleted-offset-returns", "a tombstone does not delete offsets of open transactions",
         "transactional offsets in simulated time", Patch(GroupOffsets, "apply", _tombstone_leaves_pending)),
    _bug("older-transaction-wins", "an older offset of a transaction replaces a later commit",
         "transactional offsets in simulated time", Patch(GroupOffsets, "end_transaction", _transaction_always_wins)),
    _bug("marker-lost-on-reload", "markers are skipped when the partition is loaded",
         "transactional offsets in simulated time", Patch(GroupShard, "apply", _markers_are_skipped)),
    _bug("offset-changed-without-record", "an offset is forgotten without a record", "groups beside their replay",
         Patch(GroupShard, "_offsets_written", _changed_without_a_record)),
    _bug("marker-before-its-offsets", "a marker does not wait for the results of the writes before it",
         "transactional offsets in simulated time", Patch(GroupShard, "flush", lambda original: _at_once), seed=40),
)  # fmt: skip
