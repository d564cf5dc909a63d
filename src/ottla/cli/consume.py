"""`ottla consume`: prints the records of topics, by a format or as JSON lines."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.name_patterns import existing_topic, is_pattern, select
from ottla.cli.offset_options import check_range, read_offset, read_partitions
from ottla.cli.options import Brokers, Profile, Timeout
from ottla.cli.output import ProgressBar
from ottla.cli.record_decoder import Decode, decoder
from ottla.cli.record_formatter import HELP as FORMAT_HELP
from ottla.cli.record_formatter import InvalidFormat, compile_format
from ottla.cli.record_json import TextRecord, to_json
from ottla.client import groups
from ottla.client.admin import list_topics
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.group_member import GroupMember
from ottla.client.metadata import TopicInfo
from ottla.client.offset_spec import END, START, OffsetSpec, resolve
from ottla.client.offset_spec import HELP as OFFSET_HELP
from ottla.client.offsets import offset_bounds
from ottla.client.search import parser
from ottla.client.search.last_records import last_records, since
from ottla.client.search.matcher import Matcher, compile_filter, compile_grep, equal_key, least_timestamp_ms, match_all
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.core.regexes import InvalidRegex
from ottla.records.record_reader import Record

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_COMMIT_EVERY_S = 5.0
_EPILOG = (
    f"\b\nOffsets, for --from and --to:\n{OFFSET_HELP}\n\n\b\nConditions, for --where:\n{parser.HELP}"
    f"\n\n\b\nFormat:\n{FORMAT_HELP}"
)
Print = Callable[[TextRecord], bytes]

Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topics, or patterns such as 'ord*'.", autocompletion=completion.topics),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="NAME",
        help="Read and commit as a member of this group.",
        autocompletion=completion.groups,
    ),
]


class Isolation(StrEnum):
    """The isolation level of a consumer, as in Kafka's `isolation.level`."""

    READ_COMMITTED = "read-committed"
    READ_UNCOMMITTED = "read-uncommitted"


Count = Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many records.")]
Tail = Annotated[
    int | None, typer.Option("--tail", min=1, metavar="N", help="The last N records, counted over all partitions.")
]
Grep = Annotated[
    str | None, typer.Option("--grep", metavar="REGEX", help="Only records whose key or value contains a match.")
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="CONDITION", help="Only records that fulfil it: 'value.amount > 10'.")
]
Key = Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Only records with this key.")]
Partitions = Annotated[str | None, typer.Option("--partition", "-p", metavar="0,2,5-7", help="Only these partitions.")]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="A schema registry, by which keys and values are decoded to JSON. Default: schema.registry.url.",
    ),
]


@app.command(epilog=_EPILOG)
def consume(
    topics: Topics,
    first: Annotated[
        str | None, typer.Option("--from", metavar="OFFSET", help="First offset. Default: start; end with --follow.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="OFFSET", help="End, exclusive. Default: end; none with --follow.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="At the end wait for more, until Ctrl-C.")] = False,
    count: Count = None,
    tail: Tail = None,
    grep: Grep = None,
    key: Key = None,
    where: Where = None,
    partition: Partitions = None,
    group: Group = None,
    form: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="json, or a format like '%p:%o %k=%v\\n'.")
    ] = "%v\\n",
    registry: Registry = None,
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="Printed for a key or value that is null.")] = "",
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether to print records of open and aborted transactions too.")
    ] = Isolation.READ_COMMITTED,
    read_uncommitted: Annotated[bool, typer.Option("--read-uncommitted", hidden=True)] = False,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the records of topics.

    Without --follow it stops at the end that the topic had when the command began. --format json prints a record per
    line without loss: bytes that are not UTF-8 in base64, null apart from empty, headers in order. --tail takes the
    records with the greatest timestamps. --count and --tail count what --grep, --key and --where select.
    """
    now_ms, target = SystemClock().wall_ms(), ConnectionOptions(brokers, profile, timeout)
    wanted = _ReadOptions(
        texts=tuple(topics),
        first=read_offset("--from", first or ("end" if follow else "start"), now_ms=now_ms),
        end=None if end is None and follow else END if end is None else read_offset("--to", end, now_ms=now_ms),
        partitions=None if partition is None else read_partitions("--partition", partition),
        count=count,
        tail=tail,
        read_committed=isolation is Isolation.READ_COMMITTED and not read_uncommitted,
        selection=_selection(grep, key, where, registry or target.registry(), now_ms=now_ms),
    )
    check_range(wanted.first, wanted.end)
    if tail is not None and (first or end or count or group):
        raise usage_error("--tail cannot be combined with --from, --to, --count or --group")
    if group is not None and (partition is not None or end is not None):
        raise usage_error("--group cannot be combined with --partition or --to: the group assigns the partitions")
    show, begin = _printer(form, null), None if first is None else wanted.first

    async def work(cluster: Cluster) -> None:
        if group is None:
            await _read(cluster, wanted, show)
        else:
            await _read_as_member(cluster, group, wanted, show, begin, follow=follow)

    run_on_cluster(target, work)


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The range to read; `end` is None to read without end."""

    texts: tuple[str, ...]  # names of topics and patterns
    first: OffsetSpec
    end: OffsetSpec | None
    partitions: tuple[int, ...] | None
    count: int | None
    tail: int | None
    read_committed: bool
    selection: _Selection


async def _topics(cluster: Cluster, wanted: _ReadOptions) -> list[TopicInfo]:
    """Return the topics that the names and patterns select. Raises `CommandFailed` for one that selects none."""
    names = list(wanted.texts)
    if any(map(is_pattern, names)):
        names = select(names, [topic.name for topic in await list_topics(cluster)], what="topic")
    return [await existing_topic(cluster, name) for name in dict.fromkeys(names)]


async def _partitions_of(cluster: Cluster, wanted: _ReadOptions) -> list[TopicPartition]:
    found = []
    for topic in await _topics(cluster, wanted):
        known = [p.partition for p in topic.partitions]
        for number in wanted.partitions or ():
            if number not in known:
                raise not_found(f"topic {topic.name} has no partition {number}; it has {len(known)}, numbered from 0")
        found += [TopicPartition(topic.name, number) for number in (wanted.partitions or known)]
    return found


async def _read(cluster: Cluster, wanted: _ReadOptions, show: Print) -> None:
    """Print the range of each partition, or the last records of all partitions together."""
    if wanted.tail is not None:
        await _read_tail(cluster, wanted, show, wanted.tail)
        return
    partitions = await _partitions_of(cluster, wanted)
    bounds = await offset_bounds(cluster, partitions, read_committed=wanted.read_committed)
    starts = await resolve(cluster, wanted.first, bounds)
    selected = await since(cluster, bounds, wanted.selection.least_ms)
    starts = {tp: max(starts[tp], selected[tp].start_offset) for tp in starts}
    ends = None if wanted.end is None else await resolve(cluster, wanted.end, bounds, after=starts)
    total = None if ends is None else sum(max(0, ends[tp] - starts[tp]) for tp in partitions)
    options = ConsumerOptions(read_committed=wanted.read_committed)
    printer = _Printer(show, wanted, total)
    with printer.progress:
        async with Consumer(cluster, starts, end=ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                printer.print(tp, records)
                if printer.is_done:
                    return


async def _read_tail(cluster: Cluster, wanted: _ReadOptions, show: Print, count: int) -> None:
    """Print the last records of all partitions together, and all later ones if there is no end."""
    partitions = await _partitions_of(cluster, wanted)
    bounds = await offset_bounds(cluster, partitions, read_committed=wanted.read_committed)
    options = ConsumerOptions(read_committed=wanted.read_committed)
    selected = await since(cluster, bounds, wanted.selection.least_ms)
    found = await last_records(cluster, selected, count, options=options, matches=wanted.selection.matches)
    printer = _Printer(show, wanted, None)
    for tp, placed in itertools.groupby(found.records, key=lambda one: one[0]):
        printer.print(tp, [record for _, record in placed])
    if wanted.end is None:
        ends = {tp: span.end_offset for tp, span in bounds.items()}
        async with Consumer(cluster, ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                printer.print(tp, records)


class _Printer:
    """Prints the selected records to standard output, up to --count."""

    def __init__(self, show: Print, wanted: _ReadOptions, total: int | None) -> None:
        count = wanted.count
        self.progress = ProgressBar("records", total=count if total is None else min(total, count or total))
        self._show = show
        self._matches = wanted.selection.matches
        self._decode = wanted.selection.decode
        self._left = count
        self._printed = 0
        self._is_terminal = sys.stdout.isatty()
        if self._is_terminal:  # the records themselves show the progress
            self.progress = ProgressBar("records", total=total, visible=False)

    @property
    def is_done(self) -> bool:
        """Whether --count records were printed."""
        return self._left == 0

    def print(self, tp: TopicPartition, records: list[Record]) -> int:
        """Print these records up to the limit; returns how many records were passed for that."""
        matches = self._matches
        selected = records if matches is None else [record for record in records if matches(tp, record)]
        taken = selected if self._left is None else selected[: self._left]
        show, decode, out = self._show, self._decode, []
        for record in taken if decode is None else map(decode, taken):
            offset, timestamp_ms, key, value, headers = record
            out.append(show(TextRecord(key, value, headers, timestamp_ms, tp.partition, tp.topic, offset)))
        sys.stdout.buffer.write(b"".join(out))
        sys.stdout.buffer.flush()
        self._printed += len(taken)
        self._left = None if self._left is None else self._left - len(taken)
        self.progress.update(self._printed)
        if not self.is_done:
            return len(records)
        return records.index(taken[-1]) + 1 if taken else 0


async def _read_as_member(
    cluster: Cluster, group: str, wanted: _ReadOptions, show: Print, first: OffsetSpec | None, *, follow: bool
) -> None:
    names = [topic.name for topic in await _topics(cluster, wanted)]
    await _GroupReader(cluster, group, names, wanted, show, first, follow=follow).run()


class _GroupReader:
    """Reads the partitions assigned to a group member, from the committed offsets on."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: list[str],
        wanted: _ReadOptions,
        show: Print,
        first: OffsetSpec | None,
        *,
        follow: bool,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._wanted = wanted
        self._first = first
        self._follow = follow
        self._printer = _Printer(show, wanted, None)
        self._consumer: Consumer | None = None
        self._rebalancing = asyncio.Event()
        self._member = GroupMember(cluster, group, topics, on_rebalance=self._rebalance)

    def _rebalance(self) -> None:
        self._rebalancing.set()
        if self._consumer is not None:
            self._consumer.pause_all()

    async def run(self) -> None:
        """Join, read and commit until the end, --count or Ctrl-C; always leave the group."""
        try:
            while True:
                self._rebalancing.clear()
                assigned = await self._member.join()
                done = await self._read(assigned)
                if done and not self._rebalancing.is_set():
                    return
        finally:
            await asyncio.shield(self._member.leave())

    async def _read(self, assigned: list[TopicPartition]) -> bool:
        """Read the partitions of one generation; returns whether all records were read."""
        if not assigned:
            return await self._idle()
        starts, ends = await self._range_and_first_commit(assigned)
        options = ConsumerOptions(read_committed=self._wanted.read_committed)
        loop = asyncio.get_running_loop()
        async with Consumer(self._cluster, starts, end=ends, options=options) as consumer:
            self._consumer = consumer
            shown = dict(starts)
            commit_at = loop.time() + _COMMIT_EVERY_S
            try:
                if self._rebalancing.is_set():
                    return False
                async for tp, records in consumer.chunks():
                    passed = self._printer.print(tp, records)
                    if passed:
                        shown[tp] = records[passed - 1].offset + 1
                    if self._printer.is_done:
                        return True
                    if loop.time() > commit_at:
                        await self._member.commit(_moved(shown, starts))
                        commit_at = loop.time() + _COMMIT_EVERY_S
                return True
            finally:
                self._consumer = None
                if moved := _moved(shown, starts):
                    await asyncio.shield(self._member.commit(moved))

    async def _idle(self) -> bool:
        """Wait for the next rebalance, without a partition; return True without --follow: there is nothing to do."""
        if self._follow:
            await self._rebalancing.wait()
        return not self._follow

    async def _range_and_first_commit(
        self, assigned: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
        """Return where to begin and to end. Commits where it begins, so that the lag counts every partition."""
        bounds = await offset_bounds(self._cluster, assigned, read_committed=self._wanted.read_committed)
        committed = await groups.committed_offsets(self._cluster, self._group, assigned)
        first = await resolve(self._cluster, self._first or START, bounds)
        starts = {tp: committed[tp].offset if tp in committed else first[tp] for tp in assigned}
        kept = {tp: bounds[tp].clamp(at) for tp, at in starts.items()}
        if begun := {tp: at for tp, at in kept.items() if tp not in committed}:
            await self._member.commit(begun)
        return kept, None if self._follow else {tp: bounds[tp].end_offset for tp in assigned}


def _moved(shown: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: at for tp, at in shown.items() if at != starts[tp]}


@dataclass(frozen=True, slots=True)
class _Selection:
    """The records that are wanted, all without a matcher; each has at least the timestamp `least_ms`."""

    matches: Matcher | None = None
    least_ms: int | None = None
    decode: Decode | None = None


def _selection(
    grep: str | None, key: str | None, where: str | None, registry: str | None, *, now_ms: int
) -> _Selection:
    """Read --grep, --key, --where and --registry; records are selected as they are printed. Raises `CommandFailed`."""
    matchers, least_ms = list[Matcher](), None
    if key is not None:
        matchers.append(equal_key(key.encode("utf-8", "surrogateescape")))
    try:
        if grep is not None:
            matchers.append(compile_grep(grep))
        if where is not None:
            condition = parser.parse(where, now_ms=now_ms)
            matchers.append(compile_filter(condition))
            least_ms = least_timestamp_ms(condition)
    except InvalidRegex as error:
        raise usage_error(f"--grep: {grep!r} is not a regular expression: {error}") from None
    except parser.InvalidFilter as error:
        raise usage_error(f"--where: {error}", "`ottla consume --help` describes the conditions") from None
    matches, decode = match_all(matchers), None if registry is None else decoder(registry)
    if matches is None or decode is None:
        return _Selection(matches, least_ms, decode)
    return _Selection(lambda tp, record: matches(tp, decode(record)), least_ms, decode)


def _printer(form: str, null: str) -> Print:
    if form == "json":
        return lambda line: to_json(line) + b"\n"
    try:
        return compile_format(form, null=null.encode("utf-8", "surrogateescape"))
    except InvalidFormat as error:
        raise usage_error(f"--format: {error}", "`ottla consume --help` describes the format") from None
