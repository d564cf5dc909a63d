"""Resets the offsets of groups, and deletes groups."""

from __future__ import annotations

from urllib.parse import quote

from ottla.client import groups, share_groups
from ottla.client.group_lag import offsets_of
from ottla.client.offset_spec import InvalidOffsetSpec, parse, resolve
from ottla.client.offsets import available_bounds
from ottla.console.plans import Plan, carry_out
from ottla.console.visit import Refused, Visit
from ottla.core.clock import SystemClock
from ottla.core.ids import GroupType, TopicPartition
from ottla.http.web import Response

_ROWS_MAX = 200


async def reset(visit: Visit) -> Response:
    """Set the committed offsets of a group, of one topic or all; it must have no members."""
    name, topic, to = visit.path("group"), visit.field("topic"), visit.field("to").strip()
    partition = visit.field("partition").strip()
    try:
        spec = parse(to, now_ms=SystemClock().wall_ms())
    except InvalidOffsetSpec as error:
        raise Refused(str(error)) from None
    cluster = await visit.cluster()
    group = await groups.describe_group(cluster, name)
    if group.members:
        hosts = ", ".join(sorted({member.client_id for member in group.members}))
        raise Refused(
            f"group {name} has {len(group.members)} members ({hosts}): stop them before its offsets are reset"
        )
    committed = await offsets_of(cluster, group)
    chosen = {tp for tp in committed if not topic or tp.topic == topic}
    if topic:
        info = await cluster.topic(topic, fresh=True)
        chosen |= {TopicPartition(topic, p.partition) for p in info.partitions}
    selected = sorted(tp for tp in chosen if not partition or str(tp.partition) == partition)
    if not selected:
        raise Refused("no partition is selected")
    bounds, unknown = await available_bounds(cluster, selected, read_committed=True)
    if unknown:
        tp, why = next(iter(sorted(unknown.items())))
        raise Refused(f"the offsets of {tp} are unknown, and nothing was changed: {why}")
    targets = await resolve(cluster, spec, bounds)

    async def apply() -> str:
        if group.kind is GroupType.SHARE:
            await share_groups.alter_start_offsets(cluster, name, targets)
        else:
            await groups.commit_offsets(cluster, name, targets)
        return f"Set the offsets of {len(targets)} partitions of group {name}."

    def row(tp: TopicPartition) -> list[object]:
        before = committed[tp].offset if tp in committed else None
        moved = "" if before is None else f"{targets[tp] - before:+,}"
        lag = max(0, bounds[tp].end_offset - targets[tp])
        return [str(tp), before, targets[tp], moved, lag]

    words = ["group", "seek", name, "--to", to, *(["--topic", topic] if topic else [])]
    words += ["--partition", partition] if partition else []
    plan = Plan(
        f"Reset the offsets of {name}",
        visit.cli(*words),
        f"/groups/{quote(name, safe='')}",
        apply,
        ("Partition", "Committed now", "Then", "Change", "Lag then"),
        [row(tp) for tp in selected[:_ROWS_MAX]],
        note="" if len(selected) <= _ROWS_MAX else f"The first {_ROWS_MAX} of {len(selected)} partitions are shown.",
        button="Reset offsets",
    )
    return await carry_out(visit, plan)


async def delete(visit: Visit) -> Response:
    """Delete a group without members, with its offsets."""
    name = visit.path("group")
    cluster = await visit.cluster()
    group = await groups.describe_group(cluster, name)
    if group.members:
        raise Refused(f"group {name} has {len(group.members)} members: stop them before it is deleted")
    committed = await offsets_of(cluster, group)

    async def apply() -> str:
        (outcome,) = await groups.delete_groups(cluster, [name])
        if outcome.error is not None:
            raise outcome.error
        return f"Deleted group {name}."

    plan = Plan(
        f"Delete group {name}",
        visit.cli("group", "delete", name),
        "/groups",
        apply,
        ("Partition", "Committed offset that is lost"),
        [[str(tp), committed[tp].offset] for tp in sorted(committed)[:_ROWS_MAX]],
        note="Consumers that join under this name begin where auto.offset.reset says.",
        button="Delete group",
        is_danger=True,
    )
    return await carry_out(visit, plan)
