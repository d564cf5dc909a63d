"""From places as people name them (`client/offset_spec.py`) to an offset of each partition of a topic."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.offset_spec import OffsetKind, OffsetSpec
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.offset_client import OffsetClient, Span
from ottla.pipeline.connector.offset_options import AtTime
from ottla.pipeline.log import OffsetBounds


def offsets_at(
    offset_client: OffsetClient, topic: str, place: OffsetSpec, spans: Mapping[int, OffsetBounds]
) -> dict[int, int]:
    """The offset a place means in each partition, moved to the nearest one the log has."""
    if place.kind is OffsetKind.TIMESTAMP_MS:
        wanted = {TopicPartition(topic, p): Span(s.start_offset, s.end_offset) for p, s in spans.items()}
        found = offset_client.offsets(AtTime(place.number, {}, "--from", or_latest=True), wanted)
        return {tp.partition: _within(offset, spans[tp.partition]) for tp, offset in found.items()}
    return {p: _within(_meant(place, span), span) for p, span in spans.items()}


def _meant(place: OffsetSpec, span: OffsetBounds) -> int:
    match place.kind:
        case OffsetKind.START:
            return span.start_offset
        case OffsetKind.END:
            return span.end_offset
        case OffsetKind.BEFORE_END:
            return span.end_offset - place.number
        case OffsetKind.AFTER:
            return span.start_offset + place.number
        case _:
            return place.number


def _within(offset: int, span: OffsetBounds) -> int:
    return min(max(offset, span.start_offset), span.end_offset)
