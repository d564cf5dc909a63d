"""Lists the sections of a job file, and builds a job from them. A new stage adds its section here."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions
from ottla.client.profiles import InvalidProfile, NoSuchProfile, Profiles
from ottla.client.properties import InvalidProperty, client_options
from ottla.pipeline.connector.options import WAIT_S
from ottla.pipeline.job_file.load_section import LOAD, spec_of
from ottla.pipeline.job_file.reader import ReadResult, read, read_values
from ottla.pipeline.job_file.report_section import AUDIT, REPORT
from ottla.pipeline.job_file.schema import Key, KeyProblem, SectionSchema, Values, ValueType
from ottla.pipeline.job_file.stream_section import STREAM, source_faults
from ottla.pipeline.lake.catalog import NAMESPACE, InvalidCatalog, catalog_of
from ottla.pipeline.lake.file_writer import FILE_BYTES
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.store_settings import StoreSettings
from ottla.pipeline.lake.stores import store_at, work_beside
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.load import LoadSpec
from ottla.pipeline.locations import UnsupportedLocation
from ottla.pipeline.source import CLIENT_ID, Brokers

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
KEEP_MS = 7 * _DAY_MS


DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def _check_brokers(values: Values) -> Iterator[KeyProblem]:
    """Check brokers and settings; no password is read for that."""
    try:
        bootstrap, settings = _connection(values, reads_password=False)
    except (InvalidProfile, NoSuchProfile) as error:
        yield "profile", str(error)
        return
    try:
        parse_addresses(bootstrap)
    except ValueError as error:
        yield "bootstrap", str(error)
    try:
        _client(settings)
    except InvalidProperty as error:
        yield "settings", str(error)


def _connection(values: Values, *, reads_password: bool) -> tuple[str, dict[str, str]]:
    """Return brokers and settings of the profile and of the section, which overrides it.

    Raises InvalidProfile and NoSuchProfile.
    """
    bootstrap, settings, name = values["bootstrap"], values["settings"], values["profile"]
    if name is None:
        return bootstrap, settings
    cluster = Profiles.load(os.environ).cluster(name)
    of_profile = cluster.client_settings(os.environ, name=name, reads_password=reads_password)
    return cluster.brokers if bootstrap == DEFAULT_BOOTSTRAP else bootstrap, of_profile | settings


def _client(settings: Mapping[str, str]) -> ClientOptions:
    return client_options(settings, base=ClientOptions(client_id=CLIENT_ID, retry_s=60.0))


BROKERS = SectionSchema(
    "brokers",
    "Which cluster.",
    (
        Key("bootstrap", ValueType.TEXT, "Brokers to ask first.", DEFAULT_BOOTSTRAP, example='"127.0.0.1:9092"'),
        Key(
            "profile",
            ValueType.TEXT,
            "A profile of `ottla profile`: its brokers, unless bootstrap names others, its settings and its password.",
            example='"production"',
        ),
        Key(
            "isolation",
            ValueType.TEXT,
            "Whether records of transactions are read before these are committed.",
            "read_committed",
            choices=("read_committed", "read_uncommitted"),
            example='"read_committed"',
        ),
        Key(
            "wait",
            ValueType.SPAN,
            "How long to wait at the start for brokers that cannot be reached.",
            round(WAIT_S * 1000),
            example='"8s"',
        ),
    ),
    sections=(
        SectionSchema(
            "settings",
            "Settings of the client, under Kafka's names: how to speak TLS and sign in.",
            (),
            entries=Key("", ValueType.TEXT, "A setting."),
        ),
    ),
    check=_check_brokers,
)


def _check_lake(values: Values) -> Iterator[KeyProblem]:
    """Report a lake that has no catalog where it needs one, and settings of another kind of lake."""
    try:
        _lake(values)
    except InvalidCatalog as error:
        yield "catalog", str(error)
    except UnsupportedLocation as error:
        yield "path", str(error)


def _lake(values: Values) -> Lake:
    settings = StoreSettings(values["endpoint"], values["region"], values["profile"])
    store, table_format = store_at(values["path"], settings), TableFormat(values["format"])
    if table_format is TableFormat.DELTA and values["catalog"] is None:
        return Lake(store, table_format)
    catalog = catalog_of(
        values["catalog"],
        store,
        warehouse=values["warehouse"],
        namespace=values["namespace"],
        gives_credentials=values["vended"],
        region=values["sign_for"],
    )
    return Lake(store, table_format, catalog)


LAKE = SectionSchema(
    "lake",
    "Where the tables are.",
    (
        Key(
            "path",
            ValueType.LOCATION,
            "A directory that every worker sees, or a prefix of an object store: s3://bucket/lake.",
            example='"lake"',
            required=True,
        ),
        Key(
            "endpoint",
            ValueType.TEXT,
            "The URL of an S3-compatible server. Left out: AWS_ENDPOINT_URL, or AWS.",
            example='"https://host:9000"',
        ),
        Key(
            "region",
            ValueType.TEXT,
            "The region of the bucket. Left out: AWS_REGION, or the profile's.",
            example='"eu-west-1"',
        ),
        Key(
            "profile",
            ValueType.TEXT,
            "A profile of ~/.aws with the keys. Left out: the environment, or the machine.",
            example='"lake"',
        ),
        Key(
            "catalog",
            ValueType.TEXT,
            "The catalog of Iceberg tables: a REST catalog's or a database's URL. Left out: a local file.",
            example='"https://host/iceberg"',
        ),
        Key("warehouse", ValueType.TEXT, "The catalog's warehouse.", example='"main"'),
        Key("namespace", ValueType.TEXT, "The catalog's namespace for the tables.", NAMESPACE, example='"lake"'),
        Key("vended", ValueType.FLAG, "Whether the REST catalog gives credentials for files.", False, example="true"),
        Key(
            "sign_for",
            ValueType.TEXT,
            "The AWS region for which requests to the catalog are signed, as Glue wants it.",
            example='"eu-west-1"',
        ),
        Key("format", ValueType.TEXT, "Of the tables.", "delta", choices=tuple(TableFormat), example='"delta"'),
    ),
    check=_check_lake,
)
SPARK = SectionSchema(
    "spark",
    "Where tasks run.",
    (
        Key(
            "master",
            ValueType.TEXT,
            "A Spark master's URL. Left out: this machine, all its cores.",
            example='"local[2]"',
        ),
        Key("work", ValueType.PATH, "Spark's own files and its log. Left out: beside the lake.", example='"spark"'),
    ),
)
SCHEDULE = SectionSchema(
    "schedule",
    "When `ottla pipeline run` does what. Left out: everything once.",
    (
        Key("every", ValueType.SPAN, "How long after the beginning of a round the next one begins.", example='"30s"'),
        Key(
            "compact_every",
            ValueType.SPAN,
            "How often, of those rounds, tables are compacted.",
            _HOUR_MS,
            example='"1h"',
        ),
    ),
)
COMPACT = SectionSchema(
    "compact",
    "Merges small files, expires old versions, removes orphaned files.",
    (
        Key("file_size", ValueType.SIZE, "How large a merged file becomes.", FILE_BYTES, example='"256MB"'),
        Key("keep", ValueType.SPAN, "How long older versions stay for readers.", KEEP_MS, example='"7d"'),
    ),
    defaults_to_present=False,
)
SECTIONS: tuple[SectionSchema, ...] = (BROKERS, LAKE, SPARK, SCHEDULE, LOAD, STREAM, COMPACT, AUDIT, REPORT)


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """A job file, or the same from the command line."""

    brokers: Brokers
    lake: Lake
    loads: Sequence[LoadSpec]
    master: str | None = None
    work: Path | None = None
    every_ms: int | None = None
    compact_every_ms: int = _HOUR_MS
    compact_file_bytes: int = FILE_BYTES
    keep_ms: int = KEEP_MS
    functions: frozenset[str] = frozenset()
    """The functions that the file may name: `module:function`, or one of Spark's SQL. They are never from the file."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """The values of every section, for the stages that declared them."""

    @property
    def spark_work(self) -> Path:
        """Return the directory in which Spark writes its own files and its log."""
        return self.work or work_beside(self.lake.store)


def job_of(values: Mapping[str, Any]) -> PipelineJob:
    """Return the job that checked values mean.

    Raises OSError or UnsupportedSchema over a load's Avro schema, and InvalidProfile over the password of a profile.
    """
    brokers, spark, schedule, compact = (values[name] for name in ("brokers", "spark", "schedule", "compact"))
    committed, wait_s = brokers["isolation"] == "read_committed", brokers["wait"] / 1000
    bootstrap, settings = _connection(brokers, reads_password=True)
    cluster = Brokers(bootstrap, _client(settings), read_committed=committed, wait_s=wait_s)
    lake = _lake(values["lake"])
    return PipelineJob(
        brokers=cluster,
        lake=lake,
        loads=[spec_of(load, lake=lake, brokers=cluster) for load in values["load"]],
        master=spark["master"],
        work=spark["work"],
        every_ms=schedule["every"],
        compact_every_ms=schedule["compact_every"],
        compact_file_bytes=compact["file_size"] if compact else FILE_BYTES,
        keep_ms=compact["keep"] if compact else KEEP_MS,
        sections=values,
    )


def read_job(text: str, *, directory: Path, now_ms: int) -> tuple[PipelineJob | None, ReadResult]:
    """Return a file's job, or None and its mistakes."""
    return _made(read(text, SECTIONS, directory=directory, now_ms=now_ms))


def job_from(values: Mapping[str, Any], *, directory: Path, now_ms: int) -> tuple[PipelineJob | None, ReadResult]:
    """Return the job of values as TOML's reader would give them, for the command line."""
    return _made(read_values(values, SECTIONS, {}, directory=directory, now_ms=now_ms))


def _made(found: ReadResult) -> tuple[PipelineJob | None, ReadResult]:
    if not found.faults:
        for where, fault in source_faults(found.values["stream"], found.values["load"]):
            found.add_problem(where, fault)
    if found.faults:
        return None, found
    try:
        return job_of(found.values), found
    except InvalidProfile as error:
        found.add_problem(("brokers", "profile"), str(error))
        return None, found
    except (OSError, ValueError) as error:
        found.add_problem(("load",), str(error))
        return None, found


def add_options(load: dict[str, Any], options: Iterable[str]) -> None:
    """Put `key=value` and `table.key=value` into the values of a load; a value is TOML, or else a text.

    Raises ValueError naming the option.

    >>> load = {}
    >>> add_options(load, ["time.field=at", "csv.header=true", 'keep=["key"]'])
    >>> load
    {'time': {'field': 'at'}, 'csv': {'header': True}, 'keep': ['key']}
    """
    for option in options:
        name, equals, text = option.partition("=")
        *tables, key = name.strip().split(".")
        if not equals or not key or not all(tables):
            raise ValueError(f"--option: {option!r} is not KEY=VALUE")
        into = load
        for table in tables:
            into = into.setdefault(table, {})
            if not isinstance(into, dict):
                raise ValueError(f"--option: {option!r}: {table} is a value already")  # noqa: TRY004 - of what was typed
        try:
            into[key] = tomllib.loads(f"it = {text}")["it"]
        except tomllib.TOMLDecodeError:
            into[key] = text
