"""The list of topics, and the pages of a topic: partitions, settings, groups."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client import admin
from ottla.client.metadata import PartitionInfo, TopicInfo
from ottla.client.offsets import OffsetBounds, available_bounds
from ottla.console.actions import topics as actions
from ottla.console.pages.page import Page
from ottla.console.pages.settings import settings_of
from ottla.console.paging import page_number, page_of
from ottla.console.samples import topic_records
from ottla.console.snapshot import Snapshot
from ottla.console.visit import Refused, Visit
from ottla.core.ids import TopicPartition
from ottla.core.settings import ConfigResourceType
from ottla.http.web import Response

_PARTITIONS_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A line of the list of topics."""

    topic: TopicInfo
    replicas: int
    problems: int
    size_bytes: int | None
    records: int | None
    rate: float | None
    rates: list[float | None]


async def topics(visit: Visit) -> Response:
    """List the topics whose name has a text."""
    snapshot = await visit.snapshot()
    search, shows_internal = visit.query("search").strip(), visit.query("internal") == "1"
    matching = [
        topic
        for topic in snapshot.topics.values()
        if search.lower() in topic.name.lower() and (shows_internal or not topic.internal)
    ]
    listed = page_of(matching, page_number(visit.query("page")))
    problems: dict[str, int] = {}
    for partition in snapshot.unhealthy:
        problems[partition.tp.topic] = problems.get(partition.tp.topic, 0) + 1
    return visit.page(
        "topics.html",
        title="Topics",
        listed=listed,
        rows=[_row(visit, snapshot, topic, problems.get(topic.name, 0)) for topic in listed.items],
        search=search,
        shows_internal=shows_internal,
        internal=sum(topic.internal for topic in snapshot.topics.values()),
        total=len(snapshot.topics),
        cli=visit.cli("topic", "list", *([f"*{search}*"] if search else [])),
    )


def _row(visit: Visit, snapshot: Snapshot, topic: TopicInfo, problems: int) -> TopicRow:
    ring = visit.workspace.sampler.ring
    series = topic_records(topic.name)
    _, records = ring.series(series)
    _, rates = ring.rates(series)
    return TopicRow(
        topic,
        max((len(p.replicas) for p in topic.partitions), default=0),
        problems,
        snapshot.sizes.get(topic.name),
        next((value for value in reversed(records) if value is not None), None),
        next((rate for rate in reversed(rates) if rate is not None), None),
        rates,
    )


async def topic_of(visit: Visit) -> tuple[Snapshot, TopicInfo]:
    """Return the topic of the path. Raises Refused if there is none."""
    snapshot, name = await visit.snapshot(), visit.path("topic")
    topic = snapshot.topics.get(name)
    if topic is None:  # it may be newer than the snapshot
        visit.workspace.changed()
        snapshot = await visit.snapshot()
        topic = snapshot.topics.get(name)
    if topic is None:
        raise Refused(f"there is no topic {name}", 404)
    return snapshot, topic


async def topic(visit: Visit) -> Response:
    """Show a topic: its throughput, and its partitions with their leaders and replicas in sync."""
    snapshot, info = await topic_of(visit)
    listed = page_of(info.partitions, page_number(visit.query("page")), size=_PARTITIONS_PER_PAGE)
    tps = [TopicPartition(info.name, p.partition) for p in listed.items if p.leader_id >= 0]
    cluster = await visit.cluster()
    bounds, unknown = await available_bounds(cluster, tps)
    stable, _ = await available_bounds(cluster, tps, read_committed=True)
    problems = snapshot.unhealthy_of(info.name)
    return visit.page(
        "topic.html",
        title=info.name,
        topic=info,
        tab="overview",
        listed=listed,
        rows=[_partition_row(info, p, bounds, stable) for p in listed.items],
        size_bytes=snapshot.sizes.get(info.name),
        records=sum(member.end_offset - member.start_offset for member in bounds.values()),
        is_partial=listed.pages > 1,
        reasons=visit.reasons.of_partitions(problems, snapshot.brokers),
        unhealthy={member.tp.partition: member for member in problems},
        unknown=unknown,
        cli=visit.cli("topic", "describe", info.name),
    )


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A line of the partitions of a topic. `open_records` are those after the last stable offset."""

    info: PartitionInfo
    bounds: OffsetBounds | None
    open_records: int


def _partition_row(
    topic: TopicInfo,
    info: PartitionInfo,
    bounds: dict[TopicPartition, OffsetBounds],
    stable: dict[TopicPartition, OffsetBounds],
) -> PartitionRow:
    tp = TopicPartition(topic.name, info.partition)
    here, below = bounds.get(tp), stable.get(tp)
    return PartitionRow(info, here, 0 if here is None or below is None else max(0, here.end_offset - below.end_offset))


async def settings(visit: Visit) -> Response:
    """Show the settings of a topic with their sources."""
    _, info = await topic_of(visit)
    entries = await admin.describe_configs(
        await visit.cluster(), ConfigResourceType.TOPIC, info.name, documentation=True, synonyms=True
    )
    return visit.page(
        "topic_settings.html",
        title=info.name,
        topic=info,
        tab="settings",
        settings=settings_of(visit, entries),
        names=[entry.name for entry in entries if not entry.read_only],
        cli=visit.cli("config", "describe", f"topic/{info.name}"),
    )


async def groups(visit: Visit) -> Response:
    """Show the groups that have committed offsets in a topic."""
    snapshot, info = await topic_of(visit)
    sampler = visit.workspace.sampler
    if not sampler.committed and snapshot.groups:
        await sampler.sample()
    rows = []
    for group, offsets in sorted(sampler.groups_of(info.name).items()):
        lag = sum(max(0, sampler.ends[tp] - offset) for tp, offset in offsets.items() if tp in sampler.ends)
        rows.append((snapshot.groups.get(group), group, len(offsets), lag))
    return visit.page(
        "topic_groups.html", title=info.name, topic=info, tab="groups", rows=rows, cli=visit.cli("group", "list")
    )


PAGES = (
    Page("/topics", topics),
    Page("/topics/{topic}", topic),
    Page("/topics/{topic}/settings", settings),
    Page("/topics/{topic}/groups", groups),
    Page("/topics", actions.create, "POST"),
    Page("/topics/{topic}/delete", actions.delete, "POST"),
    Page("/topics/{topic}/partitions", actions.add_partitions, "POST"),
    Page("/topics/{topic}/settings", actions.alter_setting, "POST"),
)
