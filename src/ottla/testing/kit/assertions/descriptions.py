"""Describes what a condition asked about, as it is when the wait for it has failed."""

from __future__ import annotations

import contextlib

from ottla.core.ids import GroupType
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.group_values import GroupDescription
from ottla.testing.kit.assertions.groups import describe_group, read_deliveries
from ottla.testing.kit.assertions.topics import read_offsets
from ottla.testing.kit.assertions.waiting import NOT_YET, Observations


async def describe(cluster: TestCluster, notes: Observations) -> list[str]:
    """Return lines about the groups of a condition and all their topics; what is not there is left out."""
    lines: list[str] = []
    topics = dict(notes.topics)
    for group_id in notes.groups:
        with contextlib.suppress(*NOT_YET):
            group = await describe_group(cluster, group_id)
            lines += await _group(cluster, group)
            topics |= dict.fromkeys(each.topic for each in group.partitions)
    for topic in topics:
        with contextlib.suppress(*NOT_YET):
            lines += await _topic(cluster, topic)
    return lines


async def _group(cluster: TestCluster, group: GroupDescription) -> list[str]:
    lines = [f"group {group.group_id!r}: {group.type}, {group.state}, members: {len(group.members)}"]
    for member in group.members:
        assigned = ", ".join(map(str, member.assignment)) or "no partitions"
        lines.append(f"  member {member.member_id} ({member.client_id} at {member.host}): {assigned}")
    for each in group.partitions:
        committed = "nothing committed" if each.committed is None else f"committed {each.committed}"
        lines.append(f"  {each.topic}-{each.partition}: {committed}, end {each.end}, lag {each.lag}")
    if group.type == GroupType.SHARE:
        lines += [f"  {delivery}" for delivery in await read_deliveries(cluster, group.group_id)]
    return lines


async def _topic(cluster: TestCluster, name: str) -> list[str]:
    lines = [f"topic {name!r}:"]
    for partition, offsets in (await read_offsets(cluster, name)).items():
        stable = "" if offsets.last_stable == offsets.end else f", last stable offset {offsets.last_stable}"
        lines.append(f"  partition {partition}: records from {offsets.start} to {offsets.end}{stable}")
    return lines
