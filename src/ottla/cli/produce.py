"""`ottla produce`: writes lines, JSON lines or files as records."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, command_failed, run_on_cluster
from ottla.cli.errors import CommandFailed, ExitCode, show_notice, usage_error
from ottla.cli.input_reader import STDIN, InputFormat, ReaderOptions, RecordChunk, read_input
from ottla.cli.name_patterns import existing_topic
from ottla.cli.options import Brokers, OutputFormat, Profile, Timeout, parse_seconds
from ottla.cli.output import ProgressBar, show_json
from ottla.cli.record_json import TextRecord
from ottla.client.audit import AUDIT_TOPIC, ProducedCounter
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.producer import Producer, ProducerOptions, RecordGroup, RecordRefused, WrittenRange
from ottla.client.times import parse_time_ms
from ottla.client.transactions import TRANSACTION_TIMEOUT_MS, TransactionalProducer
from ottla.core.clock import Clock, SystemClock
from ottla.core.errors import KafkaError, UnknownTopicOrPartition
from ottla.core.runtime import new_uuid
from ottla.records.codecs import CODECS

app = typer.Typer(add_completion=False, rich_markup_mode=None)
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
AnyProducer = Producer | TransactionalProducer
_UNANSWERED_MAX = 100_000  # records in flight; at this number reading the input waits
_OBJECTS_PER_COLLECTION = 100_000

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]", help="The topic; JSON lines may name it themselves.", autocompletion=completion.topics
    ),
]
Audit = Annotated[
    bool | None,
    typer.Option(
        "--audit/--no-audit",
        help="Report counts to topic __audit, for `ottla pipeline audit`. Default: if the cluster has that topic.",
    ),
]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="In lines: separates key and value.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print each record's partition and offset.")]
Summary = Annotated[
    OutputFormat | None, typer.Option("--format", "-f", help="Print a summary at the end: table or json.")
]
Transactional = Annotated[
    str | None, typer.Option("--transactional", metavar="ID", help="Write all records in one transaction of this id.")
]
TransactionTimeout = Annotated[
    float,
    typer.Option(
        "--transaction-timeout",
        parser=parse_seconds,
        metavar="SECONDS",
        help="The broker aborts a transaction that is open for longer: 60, 5m.",
    ),
]
Create = Annotated[
    bool, typer.Option("--create/--no-create", help="Let the broker create a topic that does not exist, if it does.")
]


@app.command()
def produce(
    topic: Topic = None,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="The input; - is standard input.")
    ] = None,
    kind: Annotated[
        InputFormat, typer.Option("--input", "-i", help="A record per line, per JSON line, or per file.")
    ] = InputFormat.LINES,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of records that have none.")] = None,
    key_separator: KeySeparator = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record.")
    ] = None,
    null: Annotated[str | None, typer.Option("--null", metavar="TEXT", help="This key or value is null.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Write to this partition.")
    ] = None,
    repartition: Annotated[
        bool, typer.Option("--repartition", help="Choose the partition by key; ignore those of JSON lines.")
    ] = False,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="TIME", help="2015-05-17T10:00, or milliseconds since 1970.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help=f"One of {', '.join(CODECS)}.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    transactional: Transactional = None,
    transaction_timeout: TransactionTimeout = TRANSACTION_TIMEOUT_MS / 1000,
    audit: Audit = None,
    create: Create = True,
    verbose: Verbose = False,
    shape: Summary = None,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write records to a topic and wait for the acknowledgements.

    Lines: `ottla produce logs access.log`, `echo k:v | ottla produce t -K :`. JSON lines are what `ottla consume
    --format json` prints: `ottla consume a --format json | ottla produce b --input json` copies a topic without loss.

    With --transactional readers of committed records see all records once the input has ended, or none if one failed.
    """
    _check(topic, kind, compression, acks, transactional)
    defaults = TextRecord(
        key=None if key is None else _bytes(key),
        headers=[_header(text) for text in header or []],
        timestamp_ms=_timestamp(timestamp),
        partition=partition,
        topic=topic,
    )
    reading = _reading(kind, defaults, key_separator, null, repartition=repartition)
    options = replace(_options(acks, compression), auto_create=create, delivery_timeout_s=timeout)
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)  # the records are no garbage: few collections need to pass over them
    transaction = None if transactional is None else _Transaction(transactional, int(transaction_timeout * 1000))
    job = _Job(reading, options, verbose=verbose, audit=audit, transaction=transaction)
    target = ConnectionOptions(brokers, profile, timeout)
    run_on_cluster(target, lambda cluster: job.run(cluster, files or _standard_input()))
    job.report(shape)


def _check(topic: str | None, kind: InputFormat, compression: str, acks: str, transactional: str | None) -> None:
    """Validate the options. Raises `CommandFailed`."""
    if compression not in CODECS:
        raise usage_error(f"--compression {compression}: use one of {', '.join(CODECS)}")
    if acks not in ACKS:
        raise usage_error(f"--acks {acks}: use all, 1 or 0")
    if transactional is not None and ACKS[acks] != ACKS["all"]:
        raise usage_error("--transactional needs --acks all")
    if topic is None and kind is not InputFormat.JSON:
        raise usage_error("the topic is missing", "write: ottla produce TOPIC [FILE]...")


def _options(acks: str, compression: str) -> ProducerOptions:
    return ProducerOptions(acks=ACKS[acks], idempotent=acks in {"all", "-1"}, codec=CODECS[compression])


def _reading(
    kind: InputFormat, defaults: TextRecord, key_separator: str | None, null: str | None, *, repartition: bool
) -> ReaderOptions:
    return ReaderOptions(
        kind,
        key_separator=None if key_separator is None else _separator(key_separator),
        null=None if null is None else _bytes(null),
        repartition=repartition,
        defaults=defaults,
    )


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        print("type records, one per line; end with Ctrl-D", file=sys.stderr)
    return [STDIN]


class _Transaction(NamedTuple):
    """The transactional id to use, and its timeout."""

    transactional_id: str
    timeout_ms: int


@dataclass(slots=True)
class _Written:
    """The records written to one partition."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(slots=True)
class _Sent:
    """A chunk of the input whose records were sent."""

    chunk: RecordChunk
    groups: list[RecordGroup]

    @property
    def done(self) -> bool:
        """Whether each record is written or has failed."""
        return all(group.done.done() for group in self.groups)

    async def wait(self) -> None:
        """Wait until `done`."""
        await asyncio.wait([group.done for group in self.groups])


@dataclass(slots=True)
class _Job:
    """One run: reads and sends records, and checks the acknowledgements in the order of the input."""

    reading: ReaderOptions
    options: ProducerOptions
    verbose: bool
    audit: bool | None
    transaction: _Transaction | None
    clock: Clock = field(default_factory=SystemClock)
    counter: ProducedCounter = field(default_factory=lambda: ProducedCounter(new_uuid().hex))
    written: dict[tuple[str, int], _Written] = field(default_factory=dict)
    records: int = 0
    checksums: bool = False
    """Whether the content of the records is reported too: it costs time for each record."""
    known_topics: set[str] = field(default_factory=set)
    unanswered: deque[_Sent] = field(default_factory=deque)
    unanswered_records: int = 0
    is_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, cluster: Cluster, files: list[str]) -> None:
        """Send all records; ends at the first invalid or rejected line, with all lines before it written.

        In a transaction no line counts then.
        """
        if self.reading.defaults.topic is not None:
            await self._find_or_create(cluster, self.reading.defaults.topic)
        await self._ask_for_audit(cluster)
        producer: AnyProducer
        if self.transaction is None:
            producer = Producer(cluster, clock=self.clock, options=self.options)
        else:
            name, timeout_ms = self.transaction
            producer = TransactionalProducer(
                cluster, name, clock=self.clock, options=self.options, timeout_ms=timeout_ms
            )
        with ProgressBar("records") as progress:
            async with producer:
                if isinstance(producer, TransactionalProducer):
                    producer.begin()
                invalid: CommandFailed | None = None
                try:
                    await self._send_all(cluster, producer, files, progress)
                except CommandFailed as failure:
                    if self.transaction is not None or failure.code not in {ExitCode.BAD_INPUT, ExitCode.NOT_FOUND}:
                        raise
                    invalid = failure  # the lines before the invalid one are still written
                await producer.flush()
                while self.unanswered:
                    await self._await_acks(self.unanswered.popleft())
                await self._report_counts(cluster, producer)
                if isinstance(producer, TransactionalProducer):
                    await producer.commit()
                if invalid is not None:
                    raise invalid

    async def _find_or_create(self, cluster: Cluster, topic: str) -> None:
        """Report a topic that does not exist: its name may be mistyped. The broker may create it."""
        self.known_topics.add(topic)
        try:
            await existing_topic(cluster, topic)
        except CommandFailed as unknown:
            if not self.options.auto_create:
                raise
            try:
                created = await cluster.topic(topic, allow_auto_topic_creation=True)
            except UnknownTopicOrPartition:  # the broker creates none
                unknown.advice = f"create it with `ottla topic create {topic}`"
                raise unknown from None
            fact = str(unknown.args[0]).replace("there is no", "there was no", 1)
            end = "" if fact.endswith("?") else "."
            show_notice(f"{fact}{end} The broker created it with {len(created.partitions)} partition(s)")

    async def _send_all(self, cluster: Cluster, producer: AnyProducer, files: list[str], progress: ProgressBar) -> None:
        """Read and send; acknowledgements are checked meanwhile, also while the input waits for more lines."""
        sending = asyncio.ensure_future(self._read_and_send(cluster, producer, files, progress))
        checking = asyncio.ensure_future(self._check_acks())
        try:
            await asyncio.wait({sending, checking}, return_when=asyncio.FIRST_COMPLETED)
            await (checking if checking.done() else sending)
        finally:
            sending.cancel()
            checking.cancel()
            await asyncio.gather(sending, checking, return_exceptions=True)

    async def _read_and_send(
        self, cluster: Cluster, producer: AnyProducer, files: list[str], progress: ProgressBar
    ) -> None:
        async for chunk in read_input(files, self.reading, clock=self.clock):
            if chunk.topic not in self.known_topics:
                await self._find_or_create(cluster, chunk.topic)
            await self._send(producer, chunk)
            while self.unanswered_records > _UNANSWERED_MAX:
                await self.unanswered[0].wait()
                await self._check_done()
            if self.unanswered and self.unanswered[0].done:
                await self._check_done()
            progress.update(self.records)

    async def _check_acks(self) -> None:
        """Wait for acknowledgements; ends with the error of the first rejected record."""
        while True:
            self.is_sent.clear()
            await self.is_sent.wait()
            while self.unanswered:
                await self.unanswered[0].wait()
                await self._check_done()

    async def _check_done(self) -> None:
        while self.unanswered and self.unanswered[0].done:
            await self._await_acks(self.unanswered.popleft())

    async def _ask_for_audit(self, cluster: Cluster) -> None:
        """Find out whether the records are reported: without an option, if the cluster has the topic."""
        from ottla.client.audit_topic import audit_topic_exists

        self.checksums = await audit_topic_exists(cluster) if self.audit is None else self.audit

    async def _report_counts(self, cluster: Cluster, producer: AnyProducer) -> None:
        """Report the counts to `__audit`. The records are written in any case: a failure is a warning."""
        if not self.checksums:
            return
        from ottla.client.audit_topic import ensure_audit_topic, send_counts

        try:
            if self.audit:
                await ensure_audit_topic(cluster)
            await send_counts(producer, self.counter.reports())
        except (KafkaError, CannotConnect) as error:
            print(f"warning: the counts were not reported to {AUDIT_TOPIC}: {error}", file=sys.stderr)

    async def _send(self, producer: AnyProducer, chunk: RecordChunk) -> None:
        """Send a chunk. Raises `CommandFailed` for a record that cannot be sent, after those before it were sent."""
        try:
            groups = await producer.send_many(chunk.topic, chunk.records, partitions=chunk.partitions)
        except RecordRefused as refused:
            if refused.position:
                partitions = None if chunk.partitions is None else chunk.partitions[: refused.position]
                records = chunk.records[: refused.position]
                await self._send(producer, chunk._replace(records=records, partitions=partitions))
            raise _at(chunk, refused.position, refused.error) from None
        except (KafkaError, CannotConnect) as error:
            raise _at(chunk, 0, error) from None
        self.unanswered.append(_Sent(chunk, groups))
        self.unanswered_records += len(chunk.records)
        self.is_sent.set()

    async def _await_acks(self, sent: _Sent) -> None:
        """Wait until each record of a chunk is written. Raises `CommandFailed` for the first one that was not."""
        self.unanswered_records -= len(sent.chunk.records)
        for group in sent.groups:
            await group.done
        failed = [(group.failed_position, group.error) for group in sent.groups if group.error is not None]
        for group in sent.groups:
            for written in group.written:
                self._count(sent.chunk, group, written)
        if self.verbose:
            _print_offsets(sent)
        if failed:
            position, error = min(failed, key=lambda found: found[0])
            raise _at(sent.chunk, position, error) from None

    def _count(self, chunk: RecordChunk, group: RecordGroup, written: WrittenRange) -> None:
        count, offset = written.record_count, written.base_offset
        self.records += count
        total = self.written.setdefault((chunk.topic, group.partition), _Written())
        total.records += count
        total.first_offset = offset if total.first_offset < 0 else total.first_offset
        total.last_offset = max(total.last_offset, offset + count - 1 if offset >= 0 else -1)
        if self.checksums:
            from ottla.client.audited_producer import count_written

            count_written(self.counter, chunk.topic, chunk.records, group, written)

    def report(self, shape: OutputFormat | None) -> None:
        """Print a summary: to standard output with --format, else to standard error if it is a terminal."""
        rows: list[dict[str, Any]] = [
            {
                "topic": topic,
                "partition": partition,
                "records": w.records,
                "first_offset": w.first_offset,
                "last_offset": w.last_offset,
            }
            for (topic, partition), w in sorted(self.written.items())
        ]
        match shape:
            case OutputFormat.JSON:
                show_json({"records": self.records, "partitions": rows})
            case OutputFormat.TABLE:
                from ottla.cli.output import show_rows

                show_rows(rows, ["topic", "partition", "records", "first_offset", "last_offset"], shape)
            case None if sys.stderr.isatty():
                print(f"{self.records} records written", file=sys.stderr)
            case None:
                pass


def _print_offsets(sent: _Sent) -> None:
    """Print the topic, partition and offset of each record, in the order of the input."""
    rows = [
        (
            group.positions[written.first_index + index],
            group.partition,
            written.base_offset + index if written.base_offset >= 0 else -1,
        )
        for group in sent.groups
        for written in group.written
        for index in range(written.record_count)
    ]
    for _, partition, offset in sorted(rows):
        print(f"{sent.chunk.topic}\t{partition}\t{offset}")
    sys.stdout.flush()


def _at(chunk: RecordChunk, index: int, error: Exception) -> CommandFailed:
    """Add the position in the input to an error."""
    failure = command_failed(error)
    advice = failure.advice
    if "has no partition" in str(failure.args[0]):
        advice = "--repartition chooses other partitions; `ottla topic alter --partitions` adds partitions"
    return CommandFailed(f"{chunk.position(index)}: {failure.args[0]}", code=failure.code, advice=advice)


def _bytes(text: str) -> bytes:
    """Return the bytes of an argument, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


def _separator(text: str) -> bytes:
    if not text:
        raise usage_error("--key-separator: it must not be empty")
    return _bytes({"\\t": "\t", "\\0": "\0"}.get(text, text))


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise usage_error(f"--header {text}: write NAME=VALUE, or NAME for a null value")
    return name, _bytes(value) if equals else None


def _timestamp(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_time_ms(text.removeprefix("@"))
    except ValueError as error:
        raise usage_error(f"--timestamp: {error}") from None
