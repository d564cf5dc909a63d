"""The list of groups of all types, and the page of a group with its lag in records and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.group_lag import GroupLag, describe_lags, lag_seconds
from ottla.client.groups import GroupListing
from ottla.console.actions import groups as actions
from ottla.console.pages.page import Page
from ottla.console.paging import page_number, page_of
from ottla.console.samples import group_lag
from ottla.console.visit import Visit
from ottla.core.errors import GroupIdNotFound
from ottla.core.ids import GroupType, TopicPartition
from ottla.http.web import Response

_PARTITIONS_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A line of the list of groups."""

    group: GroupListing
    lag: int | None
    lags: list[int | None]


async def groups(visit: Visit) -> Response:
    """List the groups of all types."""
    snapshot, sampler = await visit.snapshot(), visit.workspace.sampler
    if not sampler.committed and snapshot.groups:
        await sampler.sample()
    search, kind, order = visit.query("search").strip(), visit.query("type"), visit.query("order")
    listings = [
        group
        for group in snapshot.groups.values()
        if search.lower() in group.group_id.lower() and (not kind or group.kind == kind)
    ]
    if order == "lag":
        listings.sort(key=lambda group: -(sampler.lag(group.group_id) or 0))
    listed = page_of(listings, page_number(visit.query("page")))
    rows = [
        GroupRow(group, sampler.lag(group.group_id), sampler.ring.series(group_lag(group.group_id))[1])
        for group in listed.items
    ]
    return visit.page(
        "groups.html",
        title="Groups",
        listed=listed,
        rows=rows,
        search=search,
        kind=kind,
        order=order,
        kinds=[group_type.value for group_type in GroupType],
        total=len(snapshot.groups),
        cli=visit.cli("group", "list", *([f"*{search}*"] if search else [])),
    )


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A line of the partitions of a group."""

    tp: TopicPartition
    committed: int | None
    end: int | None
    lag: int | None
    lag_s: float | None
    member: str
    host: str
    unknown: str
    next_offset: int | None


async def group(visit: Visit) -> Response:
    """Show a group: its members, and the lag of each partition."""
    name = visit.path("group")
    cluster = await visit.cluster()
    lag = (await describe_lags(cluster, [name]))[name]
    if not isinstance(lag, GroupLag):
        raise lag if not isinstance(lag, GroupIdNotFound) else GroupIdNotFound(f"there is no group {name}")
    ages_s = await lag_seconds(cluster, lag)
    hosts = {member.member_id: f"{member.client_id} {member.client_host}" for member in lag.group.members}
    owners = lag.owners
    rows = [
        PartitionLag(
            tp,
            lag.committed[tp].offset if tp in lag.committed else None,
            lag.bounds[tp].end_offset if tp in lag.bounds else None,
            lag.lag_of(tp),
            ages_s.get(tp),
            owners.get(tp, ""),
            hosts.get(owners.get(tp, ""), ""),
            lag.unknown.get(tp, ""),
            lag.position(tp) if lag.lag_of(tp) else None,
        )
        for tp in lag.partitions
    ]
    worst = sorted(rows, key=lambda row: (-(row.lag or 0), row.tp))
    listed = page_of(worst, page_number(visit.query("page")), size=_PARTITIONS_PER_PAGE)
    return visit.page(
        "group.html",
        title=name,
        group=lag.group,
        lag=lag.lag,
        lag_s=max(ages_s.values(), default=None),
        listed=listed,
        topics=sorted({tp.topic for tp in lag.partitions}),
        cli=visit.cli("group", "describe", name),
    )


PAGES = (
    Page("/groups", groups),
    Page("/groups/{group:path}", group),
    Page("/groups/{group:path}/reset", actions.reset, "POST"),
    Page("/groups/{group:path}/delete", actions.delete, "POST"),
)
