"""The message browser: search, one record with who wrote it and which groups are there, the live tail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.errors import CannotConnect
from ottla.client.offset_spec import InvalidOffsetSpec, OffsetSpec, parse
from ottla.client.offsets import available_bounds
from ottla.client.offsets_of_groups import Offsets, offsets_of_groups
from ottla.client.record_lookup import StoredRecord, read_record
from ottla.client.search.matcher import Matcher
from ottla.client.transaction_admin import active_producers, list_transactions
from ottla.console import texts
from ottla.console.actions import produce
from ottla.console.decoding import FORMS, SHOWN_BYTES_MAX, Decoded, decode
from ottla.console.message_filter import MessageFilter
from ottla.console.message_search import SCANNED_MAX, Found, Search, search
from ottla.console.pages.page import Page
from ottla.console.pages.topics import topic_of
from ottla.console.snapshot import Snapshot
from ottla.console.visit import Refused, Visit, whole_number
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.http.web import Response, StreamingResponse
from ottla.records.codecs import Codec
from ottla.records.record_reader import Record

if TYPE_CHECKING:
    from ottla.console.registry import RegistryValues

_LIMITS: Final = (25, 50, 100, 500)
_LIST_BYTES_MAX: Final = 2 << 20
_BEGINNING_BYTES: Final = 4 << 10
_TAIL_SECONDS_MAX: Final = 15 * 60
_TAIL_PER_SECOND: Final = 50
_TAIL_VALUE_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as the pages show it."""

    tp: TopicPartition
    offset: int
    timestamp_ms: int
    key: Decoded
    value: Decoded
    headers: list[tuple[str, Decoded]]


def shown(
    tp: TopicPartition,
    record: Record,
    form: str = "auto",
    registry: RegistryValues | None = None,
    *,
    shown_max: int = SHOWN_BYTES_MAX,
) -> ShownRecord:
    """Decode a record."""
    headers = [(name, decode(value, shown_max=shown_max)) for name, value in record.headers]
    key = decode(record.key, registry=registry, shown_max=shown_max)
    value = decode(record.value, form, registry, shown_max=shown_max)
    return ShownRecord(tp, record.offset, record.timestamp_ms, key, value, headers)


def _shown_list(found: Found, form: str, registry: RegistryValues | None) -> list[ShownRecord]:
    """Decode the records of a list, of many large ones the beginnings alone."""
    size_bytes = sum(len(record.value or b"") + len(record.key or b"") for _, record in found.records)
    shown_max = SHOWN_BYTES_MAX if size_bytes <= _LIST_BYTES_MAX else _BEGINNING_BYTES
    return [shown(tp, record, form, registry, shown_max=shown_max) for tp, record in found.records]


def _matcher_of(fields: MessageFilter, registry: RegistryValues | None, now_ms: int) -> Matcher | None:
    """Return the condition of a search, on decoded keys and values where there is a registry. Raises Refused."""
    matches = fields.matcher(now_ms=now_ms)
    if matches is None or registry is None:
        return matches
    return lambda tp, record: matches(tp, registry.decoded(record))


async def messages(visit: Visit) -> Response:
    """Search the records of a topic."""
    _, topic = await topic_of(visit)
    now_ms = SystemClock().wall_ms()
    first = visit.query("from").strip()
    limit = int(visit.query("limit", "25")) if visit.query("limit", "25") in {str(choice) for choice in _LIMITS} else 25
    fields = MessageFilter(visit.query("key"), visit.query("text"), visit.query("where"))
    form = visit.query("form", "auto")
    problem, result, took_s = "", Found(), 0.0
    registry = visit.options.registry
    try:
        began = asyncio.get_running_loop().time()
        result = await search(
            await visit.cluster(),
            Search(
                _partitions(visit, topic.name, len(topic.partitions)),
                _offset(first, now_ms) if first else None,
                limit,
                _matcher_of(fields, registry, now_ms),
                None if registry is None else registry.preparing(),
                read_committed=visit.query("uncommitted") != "1",
            ),
        )
        took_s = asyncio.get_running_loop().time() - began
    except Refused as error:
        problem = error.message
    words = [*(["--from", first, "--count", str(limit)] if first else ["--tail", str(limit)]), *fields.words]
    words += ["--partition", visit.query("partition")] if visit.query("partition") else []
    words += [] if registry is None else ["--registry", registry.shown_url]
    return visit.page(
        "messages.html",
        title=topic.name,
        topic=topic,
        tab="messages",
        found=result,
        records=_shown_list(result, form, registry),
        fields=fields,
        first=first,
        limit=limit,
        limits=_LIMITS,
        form=form,
        forms=("auto", *FORMS),
        problem=problem,
        scanned_max=SCANNED_MAX,
        took_s=took_s,
        next_offset=_next_offset(result, first),
        cli=visit.cli("consume", topic.name, *words, "--format", "json"),
    )


def _next_offset(found: Found, first: str) -> str:
    """Return where a search from an offset goes on; only one partition has a single answer."""
    if not first or not found.is_cut or not found.records:
        return ""
    tp, record = found.records[-1]
    same = all(other == tp for other, _ in found.records)
    return str(record.offset + 1) if same else f"@{record.timestamp_ms}" if record.timestamp_ms >= 0 else ""


def _partitions(visit: Visit, topic: str, count: int) -> list[TopicPartition]:
    text = visit.query("partition").strip()
    if not text:
        return [TopicPartition(topic, number) for number in range(count)]
    number = whole_number(text, count - 1)
    if number is None:
        raise Refused(f"topic {topic} has no partition {text}; it has {count}, numbered from 0")
    return [TopicPartition(topic, number)]


def _offset(text: str, now_ms: int) -> OffsetSpec:
    try:
        return parse(text, now_ms=now_ms)
    except InvalidOffsetSpec as error:
        raise Refused(str(error)) from None


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of a record, as far as the log and the coordinators say."""

    producer_id: int
    epoch: int
    sequence: int
    transactional_id: str
    is_transactional: bool
    codec: str
    records_in_batch: int
    hints: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reader:
    """A group with a committed offset in the partition of a record."""

    group: str
    state: str
    committed: int
    distance: int  # of the record from the committed offset; 0: the group reads it next
    lag: int | None


_HINT_NAMES: Final = ("producer", "client", "source", "service", "app", "origin", "host", "trace")


async def record(visit: Visit) -> Response:
    """Show one record: its parts, its producer, and the groups of its partition."""
    snapshot, topic = await topic_of(visit)
    number = whole_number(visit.path("partition"), len(topic.partitions) - 1)
    offset = whole_number(visit.path("offset"))
    if number is None or offset is None:
        raise Refused(f"topic {topic.name} has no such partition or offset", 404)
    tp = TopicPartition(topic.name, number)
    cluster = await visit.cluster()
    stored = await read_record(cluster, tp, offset)
    bounds, _ = await available_bounds(cluster, [tp])
    committed = await _commits_in(visit, snapshot, tp)
    end = bounds[tp].end_offset if tp in bounds else None
    readers = [
        Reader(
            name,
            snapshot.groups[name].state,
            offsets[tp],
            offset - offsets[tp],
            None if end is None else max(0, end - offsets[tp]),
        )
        for name, offsets in committed.items()
        if tp in offsets
    ]
    form, registry = visit.query("form", "auto"), visit.options.registry
    if stored is not None and registry is not None:
        await registry.preparing()([stored.record])
    return visit.page(
        "record.html",
        title=f"{tp} at {offset}",
        topic=topic,
        tab="messages",
        tp=tp,
        offset=offset,
        record=None if stored is None else shown(tp, stored.record, form, registry),
        producer=None if stored is None else await _producer(visit, stored),
        readers=sorted(readers, key=lambda reader: (abs(reader.distance), reader.group)),
        bounds=bounds.get(tp),
        form=form,
        forms=("auto", *FORMS),
        cli=visit.cli(
            "consume", topic.name, "--partition", tp.partition, "--from", offset, "--count", 1, "--format", "json"
        ),
    )


async def _commits_in(visit: Visit, snapshot: Snapshot, tp: TopicPartition) -> dict[str, Offsets]:
    """Return the offsets of the groups that had some in a partition at the last sample, and of groups since then."""
    sampled = visit.workspace.sampler.committed
    listings = [listing for name, listing in snapshot.groups.items() if name not in sampled or tp in sampled[name]]
    return await offsets_of_groups(await visit.cluster(), listings)


async def _producer(visit: Visit, stored: StoredRecord) -> Producer:
    batch, transactional_id = stored.batch, ""
    if batch.is_transactional and batch.producer_id >= 0:
        try:
            listed = await list_transactions(await visit.cluster(), producer_ids=[batch.producer_id])
            transactional_id = listed[0].transactional_id if listed else ""
        except (KafkaError, CannotConnect):
            transactional_id = ""
    hints = [
        (name, decode(value).text)
        for name, value in stored.record.headers
        if any(hint in name.lower() for hint in _HINT_NAMES)
    ]
    return Producer(
        batch.producer_id,
        batch.producer_epoch,
        stored.sequence,
        transactional_id,
        batch.is_transactional,
        Codec(batch.codec).name.lower() if batch.codec else "not compressed",
        batch.record_count,
        hints,
    )


async def producers(visit: Visit) -> Response:
    """List the idempotent producers of a partition."""
    _, topic = await topic_of(visit)
    (tp,) = _partitions(visit, topic.name, len(topic.partitions))[:1]
    return visit.page(
        "producers.html",
        title=topic.name,
        topic=topic,
        tab="messages",
        partition=tp.partition,
        rows=await active_producers(await visit.cluster(), tp),
        cli=visit.cli("txn", "list"),
    )


async def tail(visit: Visit) -> Response:
    """Send the records that are written from now on, as server-sent events."""
    _, topic = await topic_of(visit)
    fields = MessageFilter(visit.query("key"), visit.query("text"), visit.query("where"))
    registry = visit.options.registry
    matches = _matcher_of(fields, registry, SystemClock().wall_ms())
    cluster = await visit.cluster()
    tps = _partitions(visit, topic.name, len(topic.partitions))
    bounds, _ = await available_bounds(cluster, tps, read_committed=True)
    ends = {tp: item.end_offset for tp, item in bounds.items()}

    async def events() -> AsyncIterator[str]:
        yield "event: ready\ndata: {}\n\n"
        loop = asyncio.get_running_loop()
        second, sent, left_out = int(loop.time()), 0, 0
        options = ConsumerOptions(read_committed=True, max_bytes=1 << 20, max_wait_s=0.5)
        prepare = None if registry is None else registry.preparing()
        try:
            async with asyncio.timeout(_TAIL_SECONDS_MAX), Consumer(cluster, ends, options=options) as consumer:
                async for tp, records in consumer.chunks():
                    if prepare is not None:
                        await prepare(records)
                    for item in records:
                        if matches is not None and not matches(tp, item):
                            continue
                        if int(loop.time()) != second:
                            second, sent = int(loop.time()), 0
                        sent += 1
                        if sent > _TAIL_PER_SECOND:
                            left_out += 1
                            continue
                        event = _event(shown(tp, item, registry=registry, shown_max=_BEGINNING_BYTES))
                        yield f"data: {json.dumps({**event, 'leftOut': left_out})}\n\n"
        except TimeoutError:
            yield "event: over\ndata: {}\n\n"
        except (KafkaError, CannotConnect) as error:
            yield f"event: failed\ndata: {json.dumps(str(error))}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(record: ShownRecord) -> Mapping[str, Any]:
    return {
        "partition": record.tp.partition,
        "offset": record.offset,
        "time": texts.time(record.timestamp_ms),
        "key": record.key.preview,
        "value": record.value.preview[:_TAIL_VALUE_CHARACTERS],
        "form": record.value.form,
    }


async def write(visit: Visit) -> Response:
    """Show the form that writes a record, filled with one that exists if the query names it."""
    _, topic = await topic_of(visit)
    partition = whole_number(visit.query("partition"), len(topic.partitions) - 1)
    offset, copied = whole_number(visit.query("offset")), None
    if partition is not None and offset is not None:
        copied = await read_record(await visit.cluster(), TopicPartition(topic.name, partition), offset)
    return visit.page(
        "produce.html",
        title=topic.name,
        topic=topic,
        tab="produce",
        fields=produce.fields_of(None if copied is None else copied.record),
        cli=visit.cli("produce", topic.name),
    )


PAGES = (
    Page("/topics/{topic}/messages", messages),
    Page("/topics/{topic}/messages/{partition}/{offset}", record),
    Page("/topics/{topic}/producers", producers),
    Page("/topics/{topic}/tail", tail),
    Page("/topics/{topic}/produce", write),
    Page("/topics/{topic}/produce", produce.produce, "POST"),
)
