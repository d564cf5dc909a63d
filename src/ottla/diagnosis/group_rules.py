"""Holds the rules about groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla.core.ids import GroupType
from ottla.diagnosis.facts import Facts, SeenEvent, total
from ottla.diagnosis.rule import Reason, Rule, Subject
from ottla.diagnosis.wording import count_of, duration

STORM_REBALANCES, STORM_S = 5, 600
DEADLINE_SHARE = 0.8  # of retention, after which records are about to be lost


def _unknown(facts: Facts, name: str) -> Iterator[Reason]:
    if name in facts.groups or name in facts.all_groups:
        return
    expired = facts.happened("offsets-expired", group=name, within_s=30 * 86_400)
    if expired:
        yield Reason(
            f"there is no group {name} any more: {expired[0].cause}",
            f"raise offsets.retention.minutes on the brokers; set the position again: ottla group seek {name} "
            "--to end --topic TOPIC",
        )
        return
    minutes = facts.config("offsets.retention.minutes", "10080")
    yield Reason(
        f"there is no group {name}: it never committed, or was unused for offsets.retention.minutes={minutes}",
        "check the name with ottla group list",
    )


def _storm(facts: Facts, name: str) -> Iterator[Reason]:
    rebalances = facts.happened("rebalance", group=name, within_s=STORM_S)
    times = total(rebalances)
    if times < STORM_REBALANCES:
        return
    causes = Counter[str]()
    for event in rebalances:
        causes[_kind_of(event.cause)] += event.count
    most, often = causes.most_common(1)[0]
    example = next(event.cause for event in rebalances if _kind_of(event.cause) == most)
    if "max.poll.interval.ms" in most:
        return  # the next rule says more
    yield Reason(
        f"rebalance storm: {times} rebalances in {duration(STORM_S)}, {often} because of: {example}",
        _STORM_FIXES.get(most, "give members a stable group.instance.id and a longer session.timeout.ms"),
    )


_STORM_FIXES = {
    "session.timeout.ms": "raise session.timeout.ms of the members, and look for pauses of their processes",
    "left": "find what restarts the members; set group.instance.id so that a restart is no rebalance",
    "joined": "find what restarts the members; set group.instance.id so that a restart is no rebalance",
}


def _kind_of(cause: str) -> str:
    words = ("max.poll.interval.ms", "session.timeout.ms", "poll timeout", "left", "joined", "subscription", "topic")
    word_in_cause = next((word for word in words if word in cause), cause)
    return "max.poll.interval.ms" if word_in_cause == "poll timeout" else word_in_cause


def _slow_consumer(facts: Facts, name: str) -> Iterator[Reason]:
    late = [
        event
        for event in facts.happened("rebalance", group=name)
        if "max.poll.interval.ms" in event.cause or "poll timeout" in event.cause
    ]
    if late:
        yield Reason(
            f"a consumer is too slow for max.poll.interval.ms, {count_of(total(late), 'time')} in the last hour: "
            f"{late[0].cause}",
            "lower max.poll.records or raise max.poll.interval.ms of the consumer",
        )


def _refused(facts: Facts, name: str, *errors: str) -> list[SeenEvent]:
    return [event for event in facts.happened("refused-request", group=name) if event.error in errors]


def _fenced_member(facts: Facts, name: str) -> Iterator[Reason]:
    fenced = facts.happened("member-fenced", group=name, within_s=STORM_S)
    refused = _refused(facts, name, "FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID")
    if total(fenced) >= 2 or refused:
        event = (fenced or refused)[0]
        yield Reason(
            f"two members use the same group.instance.id: {event.cause}",
            "give each member a group.instance.id of its own",
        )


def _assignors(facts: Facts, name: str) -> Iterator[Reason]:
    refused = _refused(facts, name, "INCONSISTENT_GROUP_PROTOCOL", "UNSUPPORTED_ASSIGNOR")
    if refused:
        yield Reason(
            f"client {refused[0].client or '-'} cannot join: its partition.assignment.strategy has no assignor "
            "that all "
            "members have, or it is no consumer",
            "configure the same partition.assignment.strategy on all members",
        )


def _not_authorized(facts: Facts, name: str) -> Iterator[Reason]:
    refused = _refused(facts, name, "GROUP_AUTHORIZATION_FAILED")
    if refused:
        yield Reason(refused[0].cause, f"ottla acl create --allow-principal User:NAME --operation read --group {name}")


def _stuck_rebalance(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is not None and group.lag.group.state in {"PreparingRebalance", "CompletingRebalance"}:
        last = facts.happened("rebalance", group=name)
        why = f", since {last[0].cause}" if last else ""
        yield Reason(
            f"it rebalances now ({group.lag.group.state}), and no member consumes meanwhile{why}",
            "wait for max.poll.interval.ms, or remove the member that does not answer: ottla group members "
            f"{name}, ottla group remove-members {name} --member ID",
        )


def _lost_records(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is None:
        return
    lag = group.lag
    for tp, committed in sorted(lag.committed.items()):
        bounds = lag.bounds.get(tp)
        if bounds is None:
            continue
        if committed.offset < bounds.start_offset:
            yield Reason(
                f"its offset {committed.offset} of {tp} is out of range: the log begins at {bounds.start_offset}, so "
                f"{bounds.start_offset - committed.offset} records were deleted unread",
                f"ottla group seek {name} --to start, and raise retention.ms of {tp.topic}",
            )
            return
        if committed.offset > bounds.end_offset:
            yield Reason(
                f"its offset {committed.offset} of {tp} is out of range: the log ends at {bounds.end_offset}; "
                "the topic "
                "was created again, or lost records",
                f"ottla group seek {name} --to end",
            )
            return


def _blocked_by_transaction(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    for topic in () if group is None else sorted({tp.topic for tp in group.lag.committed}):
        known = facts.topics.get(topic)
        stuck = {} if known is None else {tp: end for tp, end in known.stable_ends.items() if end < known.ends[tp]}
        for tp, stable in sorted(stuck.items()):
            committed = group.lag.committed.get(tp) if group is not None else None
            if committed is not None and committed.offset >= stable:
                yield Reason(
                    f"it waits at offset {stable} of {tp}, where an open transaction holds the last stable offset",
                    f"ottla why topic {topic}",
                )
                return


def _retention(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is None:
        return
    for tp, age_s in sorted(group.ages_s.items(), key=lambda item: -item[1]):
        topic = facts.topics.get(tp.topic)
        retention_ms = -1 if topic is None else topic.number("retention.ms")
        if retention_ms > 0 and age_s * 1000 >= DEADLINE_SHARE * retention_ms:
            yield Reason(
                f"it lags by {duration(age_s)} in {tp}, and retention.ms={retention_ms} "
                f"({duration(retention_ms / 1000)}) "
                "deletes records before it reads them",
                f"ottla config set topic/{tp.topic} retention.ms={retention_ms * 2}, and add consumers",
            )
            return


def _no_members(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is not None and not group.lag.group.members and group.lag.lag:
        left = facts.happened("rebalance", group=name, within_s=86_400)
        why = f"; the last: {left[0].cause}" if left else ""
        yield Reason(f"it has no members, and a lag of {group.lag.lag} records{why}", "start its consumers")


def _idle_members(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is None or group.lag.group.kind is GroupType.SHARE or group.lag.group.state != "Stable":
        return
    idle = [member for member in group.lag.group.members if not member.partitions]
    partitions = sum(len(member.partitions) for member in group.lag.group.members)
    if idle and partitions:
        yield Reason(
            f"{len(idle)} of {len(group.lag.group.members)} members have no partition: there are only {partitions}",
            "stop them, or add partitions: ottla topic alter TOPIC --partitions 12",
        )


def _locks(facts: Facts, name: str) -> Iterator[Reason]:
    expired = facts.happened("share-locks-expired", group=name)
    if expired:
        records = sum(int(event.numbers.get("records", 0)) * event.count for event in expired)
        yield Reason(
            f"the locks of {count_of(records, 'record')} expired: members do not acknowledge within "
            "group.share.record.lock.duration.ms, so records are delivered again",
            "raise share.record.lock.duration.ms of the group, or fetch fewer records at once",
        )


def _dead_letters(facts: Facts, name: str) -> Iterator[Reason]:
    letters = facts.happened("dead-letter", group=name, within_s=86_400)
    if letters:
        records = sum(int(event.numbers.get("records", 0)) * event.count for event in letters)
        yield Reason(
            f"{count_of(records, 'record')} of {letters[0].topic}-{letters[0].partition} became dead letters, "
            "from offset "
            f"{letters[0].numbers.get('first', 0):.0f}: {letters[0].cause}",
            "read them in the topic that its setting errors.deadletterqueue.topic.name names, and fix the consumer",
        )


def _lagging(facts: Facts, name: str) -> Iterator[Reason]:
    group = facts.groups.get(name)
    if group is None or not group.lag.group.members or not group.ages_s:
        return
    tp, age_s = max(group.ages_s.items(), key=lambda item: item[1])
    if age_s < 60 or not group.lag.lag:
        return
    lags = {partition: group.lag.lag_of(partition) or 0 for partition in group.lag.partitions}
    worst = max(lags, key=lags.__getitem__)
    if len(lags) > 1 and lags[worst] > 0.8 * group.lag.lag:
        yield Reason(
            f"{lags[worst]} of its lag of {group.lag.lag} are in one partition, {worst}: keys are uneven, or "
            "its member "
            f"{group.lag.owners.get(worst, '')} stands still",
            f"ottla why topic {worst.topic}",
        )
    else:
        yield Reason(
            f"its members lag by {duration(age_s)}: a lag of {group.lag.lag} records in {len(lags)} "
            f"partitions, most in {tp}",
            "add members, or make the processing of a record faster",
        )


_G = Subject.GROUP
GROUP_RULES = (
    Rule("no such group", _G, "groups, events, settings", _unknown),
    Rule("rebalance storm", _G, "events", _storm),
    Rule("consumer too slow", _G, "events", _slow_consumer),
    Rule("duplicate static member", _G, "events", _fenced_member),
    Rule("mixed assignors", _G, "events", _assignors),
    Rule("group access denied", _G, "events", _not_authorized),
    Rule("rebalance does not end", _G, "groups, events", _stuck_rebalance),
    Rule("offset out of range", _G, "committed offsets, log bounds", _lost_records),
    Rule("blocked by a transaction", _G, "committed and last stable offsets", _blocked_by_transaction),
    Rule("retention shorter than lag", _G, "lag, settings of topics", _retention),
    Rule("locks expire", _G, "events", _locks),
    Rule("dead letters", _G, "events", _dead_letters),
    Rule("no members", _G, "groups, lag", _no_members),
    Rule("more members than partitions", _G, "groups", _idle_members),
    Rule("lagging", _G, "lag", _lagging),
)
