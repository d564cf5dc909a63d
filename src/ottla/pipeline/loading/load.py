"""Runs loads: topics by name or pattern, each to its table, once or repeatedly.

One-shot and continuous are the same code: a round brings every topic to where its log ended when the round began, in as
many commits as that takes, and a continuous load waits and begins another round.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from ottla.client.errors import CannotConnect
from ottla.client.offset_spec import OffsetSpec
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_uuid
from ottla.pipeline.changes.apply import ChangeApplier
from ottla.pipeline.changes.merge import MergeRunner
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.pipeline.formats.csv_lines import CsvLines, names_in
from ottla.pipeline.formats.format import Format
from ottla.pipeline.java import JavaNotFound
from ottla.pipeline.lake.file_writer import FILE_BYTES
from ottla.pipeline.lake.intent import complete_intent
from ottla.pipeline.lake.lake import Lake, table_name
from ottla.pipeline.lake.lake_table import TableReader, register_topic, topics_of
from ottla.pipeline.lake.rewrite import target_of
from ottla.pipeline.loading.backfill import backfill_topic, replay
from ottla.pipeline.loading.commit_protocol import (
    LoadLimits,
    LoadResult,
    Tables,
    TaskRunner,
    TopicLoader,
    create_tables,
)
from ottla.pipeline.loading.dead_letters import DeadLetters, send_dead_letters
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.plan import CannotLoad, split_among_tasks
from ottla.pipeline.loading.redrive import Redriven, redrive
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.source import BrokerReader, Brokers, TopicState, topic_state

COMMIT_OFFSETS_MAX = 50_000_000
"""Of one partition in one commit: what is committed need not be done again."""
TOPIC_IN_NAME = "{topic}"
_HEADER = "ottla.csv.header."
_NO_SECOND_LOAD = (
    "offsets of a table of mode upsert or history are not loaded a second time: a later record of the same key may "
    "have replaced or deleted the row. Load into another table"
)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The declaration of one load: topics, brokers, table and mapping."""

    lake: Lake
    brokers: Brokers
    mapping: RowMapping
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for whole names of topics, in place of `topics`."""
    table: str = TOPIC_IN_NAME
    """The table's name; with `{topic}` in it every topic has a table of its own."""
    group: str = "ottla-pipeline-{table}"
    """The consumer group whose offsets show how far the load is; "" for none."""
    start: OffsetSpec | None = None
    """The beginning of a topic that was never loaded; None: its log's start."""
    on_loss: OnLoss = OnLoss.FAIL
    quarantine_max: float = 1.0
    """The share of a topic's records that a load may quarantine without a fault. All of them are always one."""
    commit_offsets: int = COMMIT_OFFSETS_MAX
    file_bytes: int = FILE_BYTES
    checksums: bool = True
    """Whether commits record the checksums of what was loaded, for the audit."""
    dead_letters: str = ""
    """The topic that quarantined records are produced to as well; `{topic}` in it is the topic's name. "" for none."""

    def tables(self, topic: str) -> Tables:
        """Return the table and the quarantine of a topic."""
        name = self.table.replace(TOPIC_IN_NAME, table_name(topic))
        return Tables(self.lake.table(name), self.lake.quarantine(name))

    def loads(self, topic: str) -> bool:
        """Return whether it is a load of this topic."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def quarantines_too_much(self, records: int, quarantined: int) -> bool:
        """Return whether a load of one topic is to be reported as a fault."""
        return records > 0 and (quarantined >= records or quarantined > self.quarantine_max * records)

    def covers(self, table: TableReader) -> bool:
        """Return whether an existing table has topics that the pattern matches."""
        assert self.pattern is not None
        wanted = re.compile(self.pattern)
        return any(
            wanted.fullmatch(topic) and self.tables(topic).table.name == table.name for topic in topics_of(table)
        )

    def dead_letters_of(self, topic: str, tables: Tables) -> DeadLetters | None:
        """Return where the quarantined records of a topic are produced to; None if nowhere."""
        if not self.dead_letters:
            return None
        to = self.dead_letters.replace(TOPIC_IN_NAME, topic)
        return DeadLetters(self.brokers, topic, to, f"ottla-pipeline-{tables.table.name}-{topic}")

    def group_of(self, tables: Tables) -> str:
        """Return the group whose offsets show how far the load is."""
        return self.group.replace("{table}", tables.table.name)


class LoadProgress(Protocol):
    """Shows the progress of a load: `progress.StageProgress` on a terminal."""

    def expect(self, count: int) -> None:
        """Note that so many more offsets are to be loaded."""

    def advance(self, count: int) -> None:
        """Note that so many more records were read."""

    def note(self, text: str) -> None:
        """Show the state of the load in one line."""

    def warn(self, text: str) -> None:
        """Report a failure that does not stop the load."""


class TaskHost(Protocol):
    """Runs write tasks. Started when the first one is needed: a load with nothing to do needs no Spark."""

    def task_runner(self, progress: Callable[[int], None]) -> TaskRunner:
        """Return the function that runs write tasks."""
        ...

    def merge_runner(self) -> MergeRunner:
        """Return the function that merges changes into a table."""
        ...

    def cores(self) -> int:
        """Return the number of tasks that run at once."""
        ...


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """The result of a round for one topic."""

    topic: str
    table: str
    commits: int = 0
    records: int = 0
    rows: int = 0
    late: int = 0
    quarantined: int = 0
    files: int = 0
    size_bytes: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    log_ends: Mapping[int, int] = field(default_factory=dict)
    lost: Sequence[OffsetRange] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    """Records that were produced to the dead-letter topic."""

    @property
    def lag(self) -> int:
        """Offsets of the log that are not loaded."""
        return sum(end - self.positions.get(p, end) for p, end in self.log_ends.items())

    def plus(self, result: LoadResult) -> TopicLoad:
        """Return the sum with one more commit."""
        reasons = dict(self.reasons)
        for reason, count in result.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
        return replace(
            self,
            commits=self.commits + 1,
            records=self.records + result.records,
            rows=self.rows + result.rows,
            late=self.late + result.late,
            quarantined=self.quarantined + result.quarantined,
            files=self.files + result.files,
            size_bytes=self.size_bytes + result.size_bytes,
            lost=[*self.lost, *result.lost],
            reasons=reasons,
        )


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """Offsets to load again, or (where they were never loaded) for the first time: places as people name them."""

    first: OffsetSpec
    end: OffsetSpec | None = None


@dataclass(frozen=True, slots=True)
class TopicFailure:
    """A topic, or a pattern of topics, with the error that did not stop the others."""

    topic: str
    error: Exception

    @property
    def text(self) -> str:
        """The error in words."""
        return str(self.error) or type(self.error).__name__


@dataclass(slots=True)
class LoadOutcome:
    """The results of a load by topic: a topic that cannot be loaded does not stop the others."""

    done: list[TopicLoad] = field(default_factory=list)
    failures: list[TopicFailure] = field(default_factory=list)


OF_ALL_TOPICS = (CannotConnect, JavaNotFound)
"""Errors that every topic would meet."""


def load_topics(
    spec: LoadSpec, task_host: TaskHost, progress: LoadProgress, *, backfill: BackfillRange | None = None
) -> LoadOutcome:
    """Load one round. The offsets of a backfill are replaced as far as they were loaded, and loaded as far as not.

    Raises CannotConnect and JavaNotFound. Any other error is one topic's, and is in the outcome.
    """

    def load_topic(topic: str, offset_client: OffsetClient) -> TopicLoad:
        return _load_topic(spec, offset_client, topic, task_host, progress, backfill)

    return _each_topic(spec, load_topic)


def replay_topics(spec: LoadSpec, task_host: TaskHost, progress: LoadProgress) -> LoadOutcome:
    """Parse the quarantined records again, for every topic. Raises what `load_topics` raises."""

    def replay_topic(topic: str, offset_client: OffsetClient) -> TopicLoad:
        tables = spec.tables(topic)
        if spec.mapping.changes is not None:
            raise CannotLoad(_NO_SECOND_LOAD)
        if not (tables.table.exists() and tables.quarantine.exists()):
            raise CannotLoad(f"topic {topic} was never loaded into {tables.table.store.url}")
        complete_intent(tables.table, tables.quarantine, progress.warn)
        state = topic_state(offset_client, topic)
        named = with_names(spec, topic, state, tables)
        loader = _topic_loader(named, topic, state, tables, task_host, progress, stem="")
        result = replay(loader, sorted(state.bounds))
        return _with_positions(TopicLoad(topic, tables.table.name), tables, state).plus(result)

    return _each_topic(spec, replay_topic)


def redrive_topics(spec: LoadSpec, *, redrives_max: int, dry_run: bool) -> tuple[list[Redriven], list[TopicFailure]]:
    """Produce the dead letters of every topic of a load again. Raises what `load_topics` raises."""
    done: list[Redriven] = []
    failures: list[TopicFailure] = []
    with _open_offset_client(spec.brokers) as offset_client:
        try:
            topics = resolve_topics(spec, offset_client)
        except (CannotLoad, KafkaError) as error:
            return done, [TopicFailure(spec.pattern or "", error)]
    for topic in topics:
        tables = spec.tables(topic)
        letters = spec.dead_letters_of(topic, tables)
        try:
            if letters is None or not tables.quarantine.exists():
                raise CannotLoad(f"topic {topic} has no dead letters: the load names no topic for them in dead_letters")
            done.append(redrive(letters, tables.quarantine, redrives_max=redrives_max, dry_run=dry_run))
        except OF_ALL_TOPICS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other topics are none the worse for it
            failures.append(TopicFailure(topic, error))
    return done, failures


def _each_topic(spec: LoadSpec, work: Callable[[str, OffsetClient], TopicLoad]) -> LoadOutcome:
    outcome = LoadOutcome()
    with _open_offset_client(spec.brokers) as offset_client:
        try:
            topics = resolve_topics(spec, offset_client)
        except (CannotLoad, KafkaError) as error:
            outcome.failures.append(TopicFailure(spec.pattern or "", error))
            return outcome
        for topic in topics:
            try:
                outcome.done.append(work(topic, offset_client))
            except OF_ALL_TOPICS:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other topics are none the worse for it
                outcome.failures.append(TopicFailure(topic, error))
    return outcome


def resolve_topics(spec: LoadSpec, offset_client: OffsetClient) -> list[str]:
    """Return the topics' names, in order. Raises CannotLoad where a pattern means no topic."""
    if spec.pattern is None:
        return list(spec.topics)
    found = sorted({tp.topic for tp in offset_client.topics(TopicSubscription(pattern=spec.pattern)).partitions})
    if not found:
        raise CannotLoad(f"no topic's whole name matches {spec.pattern!r}")
    names: dict[str, str] = {}
    for topic in found if TOPIC_IN_NAME in spec.table else []:
        other = names.setdefault(table_name(topic), topic)
        if other != topic:
            raise CannotLoad(f"topics {other} and {topic} would both have the table {table_name(topic)}; name tables")
    return found


def resolve_offsets(
    offset_client: OffsetClient, topic: str, spec: OffsetSpec | None, state: TopicState
) -> dict[int, int]:
    """Return the offset that an expression means in each partition, clamped to the log; empty without an expression."""
    if spec is None:
        return {}
    bounds = {TopicPartition(topic, p): found for p, found in state.bounds.items()}
    return {tp.partition: offset for tp, offset in offset_client.resolve(spec, bounds).items()}


@contextlib.contextmanager
def _open_offset_client(brokers: Brokers) -> Iterator[OffsetClient]:
    offset_client = OffsetClient(brokers.read_options)
    try:
        yield offset_client
    finally:
        offset_client.close()


def _load_topic(
    spec: LoadSpec,
    offset_client: OffsetClient,
    topic: str,
    task_host: TaskHost,
    progress: LoadProgress,
    backfill: BackfillRange | None,
) -> TopicLoad:
    if backfill is not None and spec.mapping.changes is not None:
        raise CannotLoad(_NO_SECOND_LOAD)
    tables, state = spec.tables(topic), topic_state(offset_client, topic)
    spec = with_names(spec, topic, state, tables)
    create_tables(tables, spec.mapping)
    register_topic(tables.table, topic, state.topic_id)
    _keep_names(tables, topic, spec.mapping.value)
    complete_intent(tables.table, tables.quarantine, progress.warn)
    with tables.table.store.lease(f"load-{topic}") as mine:
        loader = _topic_loader(spec, topic, state, tables, task_host, progress, stem=mine.id)
        done = TopicLoad(topic, tables.table.name)
        first = resolve_offsets(offset_client, topic, spec.start, state)
        end: dict[int, int] = {}
        if backfill is not None:
            first = resolve_offsets(offset_client, topic, backfill.first, state)
            end = resolve_offsets(offset_client, topic, backfill.end, state)
            replaced = backfill_topic(loader, state.bounds, first, end)
            if not replaced.did_nothing:
                done = done.plus(replaced)
        limits = LoadLimits(first, end, spec.commit_offsets, spec.on_loss)
        while True:
            progress.expect(_count_offsets(tables, topic, state, limits))
            result = loader.run(state.bounds, limits)
            done = _with_positions(done, tables, state)
            if result.did_nothing:
                return replace(done, dead_letters=_send_dead_letters(spec, topic, tables, state))
            done = done.plus(result)
            progress.note(f"{topic}  {result.rows:,} rows committed  lag {done.lag:,}")
            _commit_position(spec, offset_client, topic, tables, done.positions, progress)


def _send_dead_letters(spec: LoadSpec, topic: str, tables: Tables, state: TopicState) -> int:
    letters = spec.dead_letters_of(topic, tables)
    if letters is None:
        return 0
    held = tables.table.positions(topic, state.bounds)
    return send_dead_letters(letters, tables.quarantine, held, len(state.bounds))


def _count_offsets(tables: Tables, topic: str, state: TopicState, wanted: LoadLimits) -> int:
    """Return the number of offsets that are left to load."""
    held = tables.table.positions(topic, state.bounds)
    count = 0
    for p, span in state.bounds.items():
        first = held[p].end_offset if p in held else wanted.first.get(p, span.start_offset)
        count += max(0, min(wanted.end.get(p, span.end_offset), span.end_offset) - max(first, span.start_offset))
    return count


def _with_positions(done: TopicLoad, tables: Tables, state: TopicState) -> TopicLoad:
    held = tables.table.positions(done.topic, state.bounds)
    positions = {p: r.end_offset for p, r in held.items()}
    return replace(done, positions=positions, log_ends={p: s.end_offset for p, s in state.bounds.items()})


def _topic_loader(
    spec: LoadSpec,
    topic: str,
    state: TopicState,
    tables: Tables,
    task_host: TaskHost,
    progress: LoadProgress,
    *,
    stem: str,
) -> TopicLoader:
    job = WriteSpec(
        topic,
        BrokerReader(spec.brokers, topic, state.topic_id, headers=True),
        spec.mapping,
        target_of(tables.table, tables.table.spec(), file_bytes=spec.file_bytes),
        target_of(tables.quarantine, tables.quarantine.spec(), file_bytes=spec.file_bytes),
        fields=pa.schema([]),
        stem=stem,
        checksums=spec.checksums,
    )

    def task_runner(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        return task_host.task_runner(progress.advance)(job, parts)

    def split_ranges(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
        return split_among_tasks(ranges, task_host.cores())

    rule, applier = spec.mapping.changes, None
    if rule is not None:
        applier = ChangeApplier(rule, task_host.merge_runner(), stem or new_uuid().hex[:12], spec.file_bytes)
    return TopicLoader(tables, job, task_runner, split_ranges, applier=applier)


def _commit_position(
    spec: LoadSpec,
    offset_client: OffsetClient,
    topic: str,
    tables: Tables,
    positions: Mapping[int, int],
    progress: LoadProgress,
) -> None:
    """Commit the positions as a group's offsets, for lag monitors. The table decides, so a failure is only logged."""
    group = spec.group_of(tables)
    if not group:
        return
    try:
        offset_client.commit(group, {TopicPartition(topic, p): offset for p, offset in positions.items()})
    except (KafkaError, CannotConnect) as failure:
        progress.warn(f"the group {group} does not show the position: {failure}")


def with_names(spec: LoadSpec, topic: str, state: TopicState, tables: Tables) -> LoadSpec:
    """Return the load, with the columns' names from the topic's first record where they are to come from there."""
    value = spec.mapping.value
    if not isinstance(value, CsvLines) or value.names:
        return spec
    kept = tables.table.properties().get(_HEADER + topic) if tables.table.exists() else None
    names = names_in(kept or _first_line(spec, topic, state), value)
    return replace(spec, mapping=replace(spec.mapping, value=replace(value, names=names)))


def _keep_names(tables: Tables, topic: str, value: Format) -> None:
    """Keep the names of the columns in the table: the log may lose its first record, which has them."""
    if isinstance(value, CsvLines) and value.header and tables.table.properties().get(_HEADER + topic) is None:
        tables.table.set_properties({_HEADER + topic: value.line})


def _first_line(spec: LoadSpec, topic: str, state: TopicState) -> str:
    for partition, span in sorted(state.bounds.items()):
        if span.start_offset == span.end_offset:
            continue
        offset_range = OffsetRange(partition, span.start_offset, min(span.start_offset + 1000, span.end_offset))
        for records in BrokerReader(spec.brokers, topic, state.topic_id).read(offset_range):
            for value in records.column("value").to_pylist():
                if value:
                    return str(value.decode("utf-8", "replace"))
    raise CannotLoad(f"topic {topic} has no record that could be the header; name the columns in the load's `fields`")


def is_pattern(text: str) -> bool:
    """Return whether a topic's name as people give it is a regular expression: no topic's name has such letters.

    >>> is_pattern("web-access.v2"), is_pattern("web-.*")
    (False, True)
    """
    return re.fullmatch(r"[A-Za-z0-9._-]+", text) is None
