"""`ottla mirror`: copies topics and offsets of groups from one cluster to another, and shows how far it is."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Annotated

import typer

from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_clusters
from ottla.cli.errors import CommandFailed, show_notice, usage_error
from ottla.cli.options import Format, OutputFormat, Timeout, parse_seconds
from ottla.cli.output import show_fields, show_rows
from ottla.client.cluster import Cluster
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError, UnsupportedCompressionType
from ottla.core.ids import why_illegal_topic
from ottla.mirroring.mirror import Mirror, MirrorOptions, PartitionLag, Progress, SameCopy, mirror_lag
from ottla.mirroring.positions import own_name
from ottla.mirroring.topics import InvalidRename, TopicPolicy
from ottla.records.codecs import codec_named

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Copies of topics and group offsets in another cluster.",
)
_LAG_COLUMNS = ["topic", "partition", "copy", "position", "end_offset", "lag"]
_NO_TOPICS = "no topics to mirror"
_SHOW_EVERY_S = 5.0
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

Patterns = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics, or patterns such as 'ord*'. Default: all.")
]
Source = Annotated[
    str | None, typer.Option("--from", metavar="HOST:PORT,...", help="Brokers of the cluster to copy from.")
]
Target = Annotated[str | None, typer.Option("--to", metavar="HOST:PORT,...", help="Brokers of the cluster to copy to.")]
SourceProfile = Annotated[
    str | None, typer.Option("--from-profile", metavar="NAME", help="The same by a name (see `ottla profile`).")
]
TargetProfile = Annotated[
    str | None, typer.Option("--to-profile", metavar="NAME", help="The same by a name (see `ottla profile`).")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Leave these topics out; repeatable.")
]
Name = Annotated[
    str,
    typer.Option("--name", metavar="NAME", help="The mirror's name: it continues where its last transaction ended."),
]
Rename = Annotated[
    str, typer.Option("--rename", metavar="TEMPLATE", help="Names of the copies: {topic}, or '{source}.{topic}'.")
]
SourceName = Annotated[str, typer.Option("--source-name", metavar="NAME", help="What {source} means. Default: source.")]
IncludeCopies = Annotated[
    bool, typer.Option("--include-copies", help="Copy topics, too, that another mirror wrote into the source.")
]


@app.command()
def run(
    topics: Patterns = None,
    source: Source = None,
    target: Target = None,
    source_profile: SourceProfile = None,
    target_profile: TargetProfile = None,
    exclude: Exclude = None,
    rename: Rename = "{topic}",
    source_name: SourceName = "source",
    name: Name = "mirror",
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="PATTERN", help="Groups whose offsets are copied; repeatable."),
    ] = None,
    no_groups: Annotated[bool, typer.Option("--no-groups", help="Copy no offsets of groups.")] = False,
    include_copies: IncludeCopies = False,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", metavar="N", help="Of new copies. Default: the target's.")
    ] = -1,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "lz4",
    commit_every: Annotated[
        float, typer.Option("--commit-every", parser=parse_seconds, metavar="SECONDS", help="Length of a transaction.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Stop at the end that the source has now.")] = False,
    shape: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Copy topics, and the committed offsets of groups, until Ctrl-C.

    Records keep partition, order, key, headers and timestamp, and come exactly once for readers of committed records:
    each transaction holds the positions, too, so a killed mirror continues without loss. Copies are created with
    the partitions and settings of the source, and grow with it. Committed offsets are translated to the copies and
    written for groups without members there. A topic that is a copy is not copied back.
    """
    try:
        codec = codec_named(compression)
    except UnsupportedCompressionType as error:
        raise usage_error(f"--compression: {error.message}") from None
    options = MirrorOptions(
        name=_checked_name(name),
        topics=_policy(topics, exclude, rename, source_name),
        groups=() if no_groups else tuple(groups or ("*",)),
        includes_copies=include_copies,
        replication_factor=replication_factor,
        codec=codec,
        commit_interval_s=commit_every,
        stops_at_end=once,
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    ends = _clusters(source, source_profile, target, target_profile, timeout)
    progress = run_on_clusters(*ends, lambda one, other: _mirror(one, other, options))
    if once and not progress.topics:
        show_notice(_NO_TOPICS)
    show_fields(progress._asdict(), shape)


async def _mirror(source: Cluster, target: Cluster, options: MirrorOptions) -> Progress:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    shown_at = clock.monotonic()

    def show(progress: Progress) -> None:
        nonlocal shown_at
        if clock.monotonic() >= shown_at:
            shown_at = clock.monotonic() + _SHOW_EVERY_S
            print(
                f"mirrored {progress.records} records of {progress.topics} topics, lag {progress.lag}",
                file=sys.stderr,
                flush=True,
            )

    try:
        return await Mirror(source, target, options, clock=clock, on_progress=show).run(stop)
    except SameCopy as error:
        raise usage_error(str(error), "change --rename, or leave one out with --exclude") from None
    except KafkaError as error:
        if error.code not in _FENCED:
            raise
        raise CommandFailed(
            f"another process mirrors as {own_name(options.name)}, or this one was stopped for too long",
            advice="start it again, or give it a --name of its own",
        ) from None


@app.command()
def lag(
    topics: Patterns = None,
    source: Source = None,
    target: Target = None,
    source_profile: SourceProfile = None,
    target_profile: TargetProfile = None,
    exclude: Exclude = None,
    rename: Rename = "{topic}",
    source_name: SourceName = "source",
    name: Name = "mirror",
    include_copies: IncludeCopies = False,
    shape: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show how far each partition is mirrored: the next offset to copy, the end of the source, and what is between."""
    options = MirrorOptions(
        name=_checked_name(name), topics=_policy(topics, exclude, rename, source_name), includes_copies=include_copies
    )

    async def work(one: Cluster, other: Cluster) -> list[PartitionLag]:
        return await mirror_lag(one, other, options)

    rows = run_on_clusters(*_clusters(source, source_profile, target, target_profile, timeout), work)
    show_rows([row._asdict() for row in rows], _LAG_COLUMNS, shape, empty=_NO_TOPICS)


def _clusters(
    source: str | None, source_profile: str | None, target: str | None, target_profile: str | None, timeout: float
) -> tuple[ConnectionOptions, ConnectionOptions]:
    if (source is None) == (source_profile is None) or (target is None) == (target_profile is None):
        raise usage_error(
            "name both clusters", "--from HOST:PORT or --from-profile, and --to HOST:PORT or --to-profile"
        )
    return ConnectionOptions(source, source_profile, timeout), ConnectionOptions(target, target_profile, timeout)


def _policy(topics: list[str] | None, exclude: list[str] | None, rename: str, source_name: str) -> TopicPolicy:
    try:
        return TopicPolicy(tuple(topics or ("*",)), tuple(exclude or ()), rename, source_name)
    except InvalidRename as error:
        raise usage_error(f"--rename: {error}") from None


def _checked_name(name: str) -> str:
    why = why_illegal_topic(own_name(name))
    if why is not None:
        raise usage_error(f"--name {name}: {why}")
    return name
