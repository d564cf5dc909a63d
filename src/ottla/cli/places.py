"""From places as people name them to an offset of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.cli.failures import usage
from ottla.client import offsets
from ottla.client.cluster import Cluster
from ottla.client.ranges import BadPlace, Kind, Place, parse_place
from ottla.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: from `start_offset` on, before `end_offset`."""

    start_offset: int
    end_offset: int


def read_place(option: str, text: str, *, now_ms: int) -> Place:
    """Parse the text of an option, or say which option is wrong and how."""
    try:
        return parse_place(text, now_ms=now_ms)
    except BadPlace as error:
        raise usage(f"{option}: {error}") from None


def check_range(first: Place, end: Place | None) -> None:
    """Refuse a range that is upside down whatever the topic holds."""
    same = end is not None and first.kind is end.kind and first.kind in {Kind.OFFSET, Kind.TIMESTAMP_MS}
    if same and end is not None and first.number > end.number:
        raise usage("the range is empty: --from lies after --to")
    if end is not None and end.kind is Kind.BEFORE_END and first.kind is Kind.BEFORE_END and first.number < end.number:
        raise usage("the range is empty: --from lies after --to")


async def bounds_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, Bounds]:
    """Where each partition begins and ends now."""
    wanted = list(partitions)
    starts = await offsets.beginning_offsets(cluster, wanted)
    ends = await offsets.end_offsets(cluster, wanted, read_committed=read_committed)
    return {tp: Bounds(starts[tp], ends[tp]) for tp in wanted}


async def resolve(
    cluster: Cluster,
    place: Place,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    after: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """The offset a place means in each partition, moved to the nearest one kept.

    `+10` counts from `after`, or else from the start.
    """
    if place.kind is Kind.TIMESTAMP_MS:
        found = await offsets.list_offsets(cluster, dict.fromkeys(bounds, place.number))
        return {
            tp: _kept(found[tp].offset if found[tp].offset >= 0 else have.end_offset, have)
            for tp, have in bounds.items()
        }
    return {
        tp: _kept(_wanted(place, have, have.start_offset if after is None else after[tp]), have)
        for tp, have in bounds.items()
    }


def _wanted(place: Place, have: Bounds, after: int) -> int:
    match place.kind:
        case Kind.START:
            return have.start_offset
        case Kind.END:
            return have.end_offset
        case Kind.BEFORE_END:
            return have.end_offset - place.number
        case Kind.AFTER:
            return after + place.number
        case _:
            return place.number


def _kept(offset: int, have: Bounds) -> int:
    return min(max(offset, have.start_offset), have.end_offset)
