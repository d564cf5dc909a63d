"""Checks a recorded history: pure functions, linear in its length. Each returns one line for each violation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from ottla.core.ids import TopicPartition
from tests.simulation.history import Change, History, Outcome, Value

Checker = Callable[[History], Iterator[str]]


def lost(history: History) -> Iterator[str]:
    """Find acknowledged records that are not at their offset."""
    logs = {partition: dict(records) for partition, records in history.final.items()}
    for send in history.acknowledged():
        if send.partition in history.unclean:
            continue
        found = logs.get(send.partition, {}).get(send.offset)
        if found != send.value and send.offset >= 0:
            instead = "nothing" if found is None else found
            yield (
                f"{send.value} was acknowledged at {send.partition}@{send.offset} at {send.completed_s:.3f} s; "
                f"{instead} is there"
            )
        elif send.offset < 0 and send.value not in logs.get(send.partition, {}).values():
            yield f"{send.value} was acknowledged in {send.partition} at {send.completed_s:.3f} s and is not there"


def moved_start(history: History) -> Iterator[str]:
    """Find log starts above acknowledged records: nothing has deleted any."""
    starts: dict[TopicPartition, tuple[int, str]] = {}
    for start in history.starts:
        who = f"leader {start.node} announced at {start.time_s:.3f} s"
        starts[start.partition] = max(starts.get(start.partition, (0, "")), (start.offset, who))
    for replica in history.replicas:
        who = f"node {replica.node} has at the end"
        starts[replica.partition] = max(starts.get(replica.partition, (0, "")), (replica.start, who))
    for send in history.acknowledged():
        offset, who = starts.get(send.partition, (0, ""))
        if 0 <= send.offset < offset and send.partition not in history.unclean:
            yield f"{send.value} at {send.partition}@{send.offset} is below the log start {offset} that {who}"


def duplicated(history: History) -> Iterator[str]:
    """Find values that are in a log twice."""
    for partition, records in history.final.items():
        if partition in history.unclean:  # a producer's last numbers may be lost, too
            continue
        first: dict[Value, int] = {}
        for offset, value in records:
            if value in first:
                yield f"{value} is at {partition}@{first[value]} and @{offset}"
            first[value] = offset


def refused(history: History) -> Iterator[str]:
    """Find records that are in a log although their send failed definitely."""
    failed = {(send.partition, send.value) for send in history.sends if send.outcome is Outcome.FAILED}
    for partition, records in history.final.items():
        for offset, value in records:
            if (partition, value) in failed:
                yield f"{value} was refused and is at {partition}@{offset}"


def invented(history: History) -> Iterator[str]:
    """Find records that no producer sent."""
    sent = {(send.partition, send.value) for send in history.sends}
    for partition, records in history.final.items():
        for offset, value in records:
            if (partition, value) not in sent:
                yield f"{value} is at {partition}@{offset}; it was never sent there"


def reordered(history: History) -> Iterator[str]:
    """Find records of one producer that are not in the order of their sends."""
    for partition, records in history.final.items():
        if partition in history.unclean:
            continue
        last: dict[str, tuple[int, int]] = {}
        before = -1
        for offset, value in records:
            if offset <= before:
                yield f"{partition}@{offset} follows @{before}"
            before = offset
            counter, at = last.get(value.producer, (-1, -1))
            if value.counter < counter:
                yield f"{value} is at {partition}@{offset}, after number {counter} at @{at}"
            last[value.producer] = value.counter, offset


def real_time(history: History) -> Iterator[str]:
    """Find records at or below an offset that was acknowledged before they were sent."""
    by_partition: dict[TopicPartition, list[tuple[float, int, int]]] = defaultdict(list)
    for number, send in enumerate(history.sends):
        if send.outcome is Outcome.OK and send.offset >= 0 and send.partition not in history.unclean:
            by_partition[send.partition].append((send.completed_s, 1, number))
            by_partition[send.partition].append((send.invoked_s, 0, number))
    for partition, events in by_partition.items():
        most, floor = -1, dict[int, int]()
        for _, is_end, number in sorted(events):
            send = history.sends[number]
            if not is_end:
                floor[number] = most
            elif send.offset <= floor[number]:
                yield f"{send.value} got {partition}@{send.offset}; @{floor[number]} was acknowledged before its send"
                most = max(most, send.offset)
            else:
                most = max(most, send.offset)


def changed(history: History) -> Iterator[str]:
    """Find offsets at which two values were seen, by anyone at any time."""
    values: dict[tuple[TopicPartition, int], tuple[Value, str]] = {}

    def conflict(partition: TopicPartition, offset: int, value: Value, by: str) -> str | None:
        if partition in history.unclean:
            return None
        before, who = values.setdefault((partition, offset), (value, by))
        return None if before == value else f"{partition}@{offset} was {before} for {who} and {value} for {by}"

    for partition, records in history.final.items():
        for offset, value in records:
            if found := conflict(partition, offset, value, "the final read"):
                yield found
    for seen in history.seen:
        if found := conflict(seen.partition, seen.offset, seen.value, f"{seen.consumer} at {seen.time_s:.3f} s"):
            yield found
    for send in history.acknowledged():
        if send.offset >= 0 and (found := conflict(send.partition, send.offset, send.value, "its producer")):
            yield found


def skipped(history: History) -> Iterator[str]:
    """Find records of the final log that a consumer passed over, or received twice."""
    finals = {partition: [offset for offset, _ in records] for partition, records in history.final.items()}
    by_reader: dict[tuple[str, TopicPartition], list[int]] = defaultdict(list)
    for seen in history.seen:
        if not seen.read_committed:
            by_reader[seen.consumer, seen.partition].append(seen.offset)
    for (consumer, partition), offsets in by_reader.items():
        if partition in history.unclean:
            continue
        received = set(offsets)
        if len(received) != len(offsets):
            yield f"{consumer} received an offset of {partition} twice"
        missing = [at for at in finals.get(partition, []) if offsets[0] < at < offsets[-1] and at not in received]
        if missing:
            yield f"{consumer} did not receive {partition}@{missing[0]}, but later offsets"


def divergent(history: History) -> Iterator[str]:
    """Find replicas that differ below the high watermark, and epochs that fall."""
    by_partition: dict[TopicPartition, dict[int, tuple[bytes, int]]] = defaultdict(dict)
    for replica in history.replicas:
        epoch, next_offset = -1, replica.start
        for batch in replica.batches:
            if batch.leader_epoch < epoch:
                yield f"epoch {batch.leader_epoch} follows {epoch} in {replica.partition} of node {replica.node}"
            if batch.base_offset < next_offset and batch.last_offset >= replica.start and next_offset > replica.start:
                yield f"@{batch.base_offset} follows @{next_offset - 1} in {replica.partition} of node {replica.node}"
            epoch, next_offset = batch.leader_epoch, batch.last_offset + 1
            if batch.last_offset >= replica.high_watermark:
                continue
            known = by_partition[replica.partition].setdefault(batch.base_offset, (batch.raw, replica.node))
            if known[0] != batch.raw:
                yield f"{replica.partition}@{batch.base_offset} differs on nodes {known[1]} and {replica.node}"
        if next_offset < replica.high_watermark:
            yield (
                f"{replica.partition} of node {replica.node} ends at {next_offset}, "
                f"below its high watermark {replica.high_watermark}"
            )


def two_leaders(history: History) -> Iterator[str]:
    """Find leader epochs in which two brokers served."""
    served: dict[tuple[TopicPartition, int], int] = {}
    for partition, epoch, node in history.leaders:
        other = served.setdefault((partition, epoch), node)
        if other != node:
            yield f"nodes {other} and {node} led {partition} in epoch {epoch}"


def foreign_write(history: History) -> Iterator[str]:
    """Find states of partitions that were written in another session than that of the latest controller."""
    controller = -1, -1
    for write in history.store_writes:
        if write.begins_term:
            controller = write.node, write.session
        elif (write.node, write.session) != controller:
            yield (
                f"node {write.node} wrote {', '.join(write.paths)} at {write.time_s:.3f} s in session {write.session}; "
                f"the controller was node {controller[0]} in session {controller[1]}"
            )


def aborted(history: History) -> Iterator[str]:
    """Find records of aborted transactions that a read_committed consumer received, and torn transactions."""
    outcomes = {(each.name, each.number): each for each in history.transactions}

    def is_aborted(value: Value) -> bool:
        end = outcomes.get((value.producer, value.transaction))
        return end is not None and end.outcome is Outcome.OK and end.is_abort

    for seen in history.seen:
        if seen.read_committed and is_aborted(seen.value):
            yield f"{seen.consumer} received {seen.value} at {seen.partition}@{seen.offset}: it was aborted"
    visible: dict[tuple[str, int], int] = defaultdict(int)
    for partition, records in history.final_committed.items():
        for offset, value in records:
            if is_aborted(value):
                yield f"{value} is visible at {partition}@{offset}: it was aborted"
            if value.transaction >= 0:
                visible[value.producer, value.transaction] += 1
    sent: dict[tuple[str, int], int] = defaultdict(int)
    for send in history.sends:
        if send.value.transaction >= 0 and send.outcome is Outcome.OK:
            sent[send.value.producer, send.value.transaction] += 1
    for (producer, number), end in outcomes.items():
        count, wanted = visible[producer, number], sent[producer, number]
        if not end.is_abort and end.outcome is Outcome.OK and count != wanted:
            yield f"transaction {number} of {producer} was committed with {wanted} records; {count} are visible"
        elif 0 < count < wanted:
            yield f"transaction {number} of {producer} is torn: {count} of {wanted} records are visible"


def double_owner(history: History) -> Iterator[str]:
    """Find generations of a group in which two members owned a partition."""
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    for each in history.owners:
        other = owners.setdefault((each.group, each.generation, each.partition), each.member)
        if other != each.member:
            yield f"{other} and {each.member} owned {each.partition} in generation {each.generation} of {each.group}"


def lost_commit(history: History) -> Iterator[str]:
    """Find acknowledged offset commits of one client that went back or are not there."""
    latest: dict[tuple[str, TopicPartition], int] = {}
    unknown: dict[tuple[str, TopicPartition], list[int]] = defaultdict(list)
    for commit in history.commits:
        assert commit.partition is not None
        key = commit.name, commit.partition
        if commit.outcome is Outcome.OK:
            latest[key] = commit.number
            unknown[key] = []
        elif commit.outcome is Outcome.UNKNOWN:
            unknown[key].append(commit.number)
    for (group, partition), number in latest.items():
        found = history.final_commits.get((group, partition), -1)
        if found != number and found not in unknown[group, partition]:
            yield f"group {group} committed {number} for {partition}; {found} is stored"


def stale_access(history: History) -> Iterator[str]:
    """Find what a broker allowed although it had not been right for longer than a snapshot may be old."""
    for use in history.uses:
        if not use.is_allowed:
            continue
        changes = [Change(0.0, use.user, 0), *(change for change in history.changes if change.user == use.user)]
        ends = [*(change.time_s for change in changes[1:]), float("inf")]
        if not any(
            change.value == use.value and change.time_s <= use.ended_s and end_s >= use.began_s - history.age_s
            for change, end_s in zip(changes, ends, strict=True)
        ):
            yield f"{use}, but {[tuple(change) for change in changes if change.time_s <= use.ended_s]}"


def problems(history: History) -> Iterator[str]:
    """Return what the run itself found."""
    yield from history.problems


CHECKERS: tuple[Checker, ...] = (
    problems,
    lost,
    moved_start,
    duplicated,
    refused,
    invented,
    reordered,
    real_time,
    changed,
    skipped,
    divergent,
    two_leaders,
    foreign_write,
    aborted,
    double_owner,
    lost_commit,
    stale_access,
)


def violations(history: History) -> list[str]:
    """Run all checkers; each line begins with the checker's name."""
    return [f"{checker.__name__}: {line}" for checker in CHECKERS for line in checker(history)]
