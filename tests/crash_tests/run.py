"""Going through the states: stop a workload, take the disk as a power cut or a kill may leave it, recover, compare.

Where the disk ignores syncs, or unsynced data counts as acknowledged, violations must be found.

A state has a name that replays it: the workload, the number of the change that did not happen any more, and

    state:12    the 12th of all that may be left (`SimDisk.state`)
    dice:3      thrown with the 3rd dice of this stop (`SimDisk.torn`), from the seed
    killed:0    only the process died; the number counts how much of the write under way was done

Each is recovered, compared, recovered once more (no byte may change), written to, and recovered again. From each a
second crash is made too: the recovery itself is stopped at one of its changes, and what that leaves is recovered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.errors import KafkaError
from ottla.core.files import read_file
from ottla.records.batch import BatchHeader
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.file_names import DELETED_SUFFIX
from ottla.testing.sim_disk import PowerCut, SimDisk
from tests.crash_tests.expected_state import ExpectedState
from tests.crash_tests.invariants import DataLoss, InvariantViolation, all_logs, check, require, walk
from tests.crash_tests.moves import complete_moves
from tests.crash_tests.workload_driver import WorkloadDriver, opened_all
from tests.crash_tests.workloads import WORKLOADS, Workload
from tests.support.storage import NOW_MS, StillClock, batch


class Stop(NamedTuple):
    """Where a workload ends."""

    workload: str
    change: int  # the number of the change that does not happen


class State(NamedTuple):
    """One thing that may be left."""

    name: str
    disk: SimDisk
    killed: bool


@dataclass
class Result:
    """What one stop gave."""

    stop: Stop
    seen: set[int] = field(default_factory=set)  # a number for each different state: image and what is expected of it
    all_there_are: bool = False  # every state was gone through, none was left to the dice
    broken: str | None = None  # the first violation, and the command that repeats it
    is_loss: bool = False  # and it was that acknowledged records are gone


def stops_of(workload: Workload, *, lies: bool = False) -> list[Stop]:
    """Every change of the disk the workload makes, and the end."""
    disk = SimDisk(lies=lies)
    workload.run(WorkloadDriver(disk, workload.config, acks_at_once=workload.acks_at_once, paths=workload.paths))
    return [Stop(workload.name, change) for change in range(1, disk.changes + 2)]


def stopped(stop: Stop, *, lies: bool = False) -> tuple[SimDisk, ExpectedState]:
    """The workload run up to there."""
    workload = WORKLOADS[stop.workload]
    disk = SimDisk(lies=lies)
    disk.stop_at(stop.change)
    driver = WorkloadDriver(disk, workload.config, acks_at_once=workload.acks_at_once, paths=workload.paths)
    try:
        workload.run(driver)
    except PowerCut:
        pass
    return disk, driver.expected_state


def states_left(stop: Stop, disk: SimDisk, *, seed: int, first: int, count: int) -> Iterator[State]:
    """All states of a stop if they are at most `count`, else so many by dice, from the `first` on."""
    total = disk.states()
    if first == 0:
        yield named_state(stop, "state:0", disk, seed=seed)
        yield from (named_state(stop, f"killed:{at}", disk, seed=seed) for at in range(len(disk.killed())))
    if total <= count:
        names = (f"state:{number}" for number in range(1 if first == 0 else 0, total))
    else:
        names = (f"dice:{at}" for at in range(first, first + count))
    yield from (named_state(stop, name, disk, seed=seed) for name in names)


def named_state(stop: Stop, name: str, disk: SimDisk, *, seed: int) -> State:
    """The state of a name, as a failure prints it."""
    kind, number = name.split(":")
    match kind:
        case "state":
            left = disk.state(int(number))
        case "killed":
            left = disk.killed()[int(number)]
        case _:
            rng = random.Random(f"{seed}:{stop.workload}:{stop.change}:{number}")
            left = disk.torn(rng) if int(number) % 2 else disk.state(rng.randrange(disk.states()))
    left.lies = False
    return State(name, left, killed=kind == "killed")


def check_stop(stop: Stop, *, seed: int, first: int = 0, count: int, lies: bool = False) -> Result:
    """Go through a stop's states until one violates an invariant."""
    disk, expected_state = stopped(stop, lies=lies)
    result = Result(stop, all_there_are=disk.states() <= count)
    for state in states_left(stop, disk, seed=seed, first=first, count=count):
        image = hash((state.disk.image(), state.killed, expected_state.version, stop.workload))
        if image in result.seen:
            continue
        result.seen.add(image)
        error = broken_by(state, stop, expected_state, seed=seed, seen=result.seen)
        if error is not None:
            what = disk.history[stop.change - 1] if stop.change <= len(disk.history) else "the end"
            result.is_loss = isinstance(error, DataLoss)
            result.broken = (
                f"{type(error).__name__}: {error}\n"
                f"  workload {stop.workload}, stopped before change {stop.change} ({what}), {state.name}\n"
                f"  again: python -m tests.crash_tests --seed {seed} --replay {stop.workload}/{stop.change}/{state.name}"
            )
            return result
    return result


def broken_by(
    state: State, stop: Stop, expected_state: ExpectedState, *, seed: int, seen: set[int], twice: bool = True
) -> Exception | None:
    """What is wrong with the recovery of a state, and `twice` of one that is stopped; None if nothing is."""
    workload = WORKLOADS[stop.workload]
    rng = random.Random(f"{seed}:{stop.workload}:{stop.change}:{state.name}:again")
    try:
        again = state.disk.state(0)  # everything in it is durable: the same disk once more
        directories = recovered(state.disk, workload)
        changes = state.disk.changes
        scanned = [directory.path for directory in directories if directory.clean_broker_epoch is None]
        if scanned:
            same_again(state.disk, workload, scanned)
        check(state.disk, directories, expected_state, killed=state.killed)
        check_moves(state, directories, workload, expected_state)
        check_goes_on(state.disk, directories, workload)
        if twice:
            second_crash(again, workload, expected_state, rng, changes=changes, seen=seen, stop=stop)
    except (InvariantViolation, KafkaError, OSError, AssertionError, LookupError, ValueError) as error:
        return error
    return None


def recovered(disk: SimDisk, workload: Workload) -> tuple[LogDirectory, ...]:
    """The next start."""
    return opened_all(disk, workload.config, StillClock(), workload.paths)


def same_again(disk: SimDisk, workload: Workload, roots: Sequence[PurePath]) -> None:
    """Recovery is idempotent, and all it did was durable: lose what it has not synced, recover again, compare."""
    after = disk.state(0)
    recovered(after, workload)
    for root in roots:
        for directory in disk.names_in(root):
            if disk.is_directory(root / directory) and not directory.endswith("-delete"):
                for name in sorted({*disk.names_in(root / directory), *after.names_in(root / directory)}):
                    path = root / directory / name
                    same = disk.exists(path) and after.exists(path) and read_file(disk, path) == read_file(after, path)
                    require(same or name.endswith(DELETED_SUFFIX), f"a second recovery changes {directory}/{name}")


def check_moves(
    state: State, directories: tuple[LogDirectory, ...], workload: Workload, expected_state: ExpectedState
) -> None:
    """The moves that were under way can be completed, and the copies are what the logs were, now and after a crash."""
    held = {tp: [lying.raw for lying in walk(state.disk, log)] for tp, log in all_logs(directories).items()}
    half_removed = [tp for tp, each in expected_state.logs.items() if each.may_be_empty]  # it is fetched again first
    if not complete_moves(directories, StillClock(), but=half_removed):
        return
    for left in (None, state.disk.state(0)):
        if left is not None:
            directories = recovered(left, workload)
        disk = left or state.disk
        require(all(tp in half_removed for each in directories for tp in each.future_logs), "a move is not over")
        logs = all_logs(directories)
        moved = ExpectedState(
            {
                tp: replace(each, bases=each.bases | {logs[tp].segments[0].base_offset} if tp in logs else each.bases)
                for tp, each in expected_state.logs.items()
            }
        )
        check(disk, directories, moved, killed=state.killed)
        for tp, raws in held.items():
            starts = logs[tp].log_start_offset
            kept = [raw for raw in raws if BatchHeader(raw).last_offset >= starts]
            found = [lying.raw for lying in walk(disk, logs[tp]) if lying.header.last_offset >= starts]
            if expected_state.logs[tp].compacts:  # what recovery took for a gap, the copy may have
                found = [raw for raw in found if raw in kept]
            require(found == kept, f"{tp}: the copy differs from the log")


def check_goes_on(disk: SimDisk, directories: tuple[LogDirectory, ...], workload: Workload) -> None:
    """Appends work, are durable after a flush, and take nothing away that was there."""
    logs = all_logs(directories)
    before = {tp: [lying.raw for lying in walk(disk, log)] for tp, log in logs.items()}
    for log in logs.values():
        log.append(batch(b"more", key=b"more"), leader_epoch=max(log.epochs.latest, 0) + 1, now_ms=NOW_MS)
        log.flush()
    after = disk.state(0)
    again = all_logs(recovered(after, workload))
    for tp, log in logs.items():
        require(tp in again, f"{tp}: gone after an append")
        raws = [lying.raw for lying in walk(after, again[tp])]
        require(raws[:-1] == before[tp], f"{tp}: an append after the recovery has changed what was there")
        require(again[tp].end_offset == log.end_offset, f"{tp}: what was appended after the recovery is lost")


def second_crash(
    disk: SimDisk,
    workload: Workload,
    expected_state: ExpectedState,
    rng: random.Random,
    *,
    changes: int,
    seen: set[int],
    stop: Stop,
) -> None:
    """Stop the recovery at one of its changes, and recover what that leaves."""
    if not changes:
        return
    at = rng.randint(1, changes)
    disk.stop_at(at)
    try:
        recovered(disk, workload)
    except PowerCut:
        pass
    left = disk.torn(rng) if rng.random() < 0.5 else disk.state(rng.randrange(disk.states()))
    seen.add(hash((left.image(), False, expected_state.version, stop.workload)))
    directories = recovered(left, workload)
    try:
        check(left, directories, expected_state, killed=False)
    except InvariantViolation as error:
        raise type(error)(
            f"after a stop of the recovery before its change {at} ({disk.history[at - 1]}): {error}"
        ) from None
