"""`ottla cluster reassign`, `drain` and `leaders`: plans and runs moves of replicas, shows and elects leaders."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import CommandFailed, not_found, show_notice, usage_error
from ottla.cli.name_patterns import select
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ItemResult, ProgressBar, bytes_text, show_json, show_results, show_rows
from ottla.client import admin, log_dirs, replica_admin
from ottla.client.cluster import Cluster
from ottla.client.reassignment_plan import ImpossiblePlan, Move, leaders_by_broker, plan_drain, plan_reassignment
from ottla.client.replica_admin import ElectionType, Reassignment
from ottla.core.clock import SystemClock
from ottla.core.errors import (
    InvalidReplicaAssignment,
    KafkaError,
    NoReassignmentInProgress,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition

reassign = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, help="Move replicas to other brokers."
)
_POLL_S = 0.5
_PROGRESS_POLL_S = 1.0
_SETTLING_POLLS = 10
_ANY_DIRECTORY = "any"
_PLAN_COLUMNS = ["topic", "partition", "replicas", "wanted", "to_copy"]
_PROGRESS_S = 10.0  # between two lines where no progress bar can be shown
_STATUS_COLUMNS = ["topic", "partition", "replicas", "adding", "removing", "progress"]

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Topics, or patterns. Default: all.", autocompletion=completion.topics),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all replicas are moved.")]


class ElectionOption(StrEnum):
    """The kinds of `--elect`."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


# ---- Reassignments


@reassign.command()
def plan(
    topics: Topics = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="1,2,3", help="Brokers to place the replicas on. Default: all.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, metavar="N", help="Default: as it is.")
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Plan to spread replicas and leaders evenly over brokers, with few moves; racks differ where possible.

    With --format json it prints the plan as Kafka's tools read it: save it, look at it, and give it to `apply`.
    """

    async def work(cluster: Cluster) -> None:
        current, racks = await _replicas(cluster, topics)
        targets = racks.keys() if to is None else _ids("--to", to)
        try:
            moves = plan_reassignment(current, racks, targets=targets, replication_factor=replication_factor)
        except ImpossiblePlan as error:
            raise usage_error(str(error)) from None
        await _show_plan(cluster, moves, shape)

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)


@reassign.command()
def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan in JSON, or - for standard input.")],
    wait: Wait = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Begin the moves of a plan, as `plan` or kafka-reassign-partitions prints it.

    Log directories in the plan (`log_dirs`, "any" for no choice) are those of the replicas at the same place.
    """
    wanted, directories = _read_plan(file)

    async def work(cluster: Cluster) -> None:
        if directories and not dry_run:
            await _alter_log_dirs(cluster, directories)
        known, _ = await _replicas(cluster, sorted({tp.topic for tp in wanted}))
        moves = [Move(tp, known.get(tp, ()), tuple(replicas)) for tp, replicas in wanted.items()]
        if dry_run:
            report_failures([(str(move.tp), _refusal(move, known)) for move in moves], what="partition")
            for broker in sorted({broker for move in moves for broker in move.wanted} - cluster.info.nodes.keys()):
                show_notice(
                    f"broker {broker} is not alive: a move to it waits, or is refused if there is no such broker"
                )
        await _begin(cluster, moves, shape, wait=wait, dry_run=dry_run)

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)


@reassign.command()
def status(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the moves that are under way, and how much of each is copied."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        return await _status(cluster, await replica_admin.list_reassignments(cluster))

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_rows(rows, _STATUS_COLUMNS, shape, empty="no replicas are being moved")


@reassign.command()
def cancel(
    topics: Topics = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Cancel moves that are under way: the partitions keep the replicas they had."""

    async def work(cluster: Cluster) -> list[admin.Outcome]:
        running = await replica_admin.list_reassignments(cluster)
        names = (
            select(topics or [], {reassignment.tp.topic for reassignment in running}, what="topic") if running else []
        )
        return await replica_admin.alter_reassignments(
            cluster, {reassignment.tp: None for reassignment in running if reassignment.tp.topic in names}
        )

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="partition")
    if shape is OutputFormat.JSON:
        show_results([ItemResult(outcome.name, "canceled") for outcome in outcomes], shape)
    else:
        print(f"canceled {len(outcomes)} moves" if outcomes else "no replicas are being moved")


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The id of the broker.")],
    wait: Wait = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move all replicas away from a broker, so that it can be removed for good.

    `ottla cluster reassign status` shows how far it is; `reassign cancel` undoes what is not complete.
    """

    async def work(cluster: Cluster) -> None:
        current, racks = await _replicas(cluster, None)
        try:
            moves = plan_drain(current, racks, broker=broker)
        except ImpossiblePlan as error:
            raise CommandFailed(str(error), advice="add a broker, or lower the replication factor") from None
        if not moves and broker not in racks:
            raise not_found(f"there is no broker {broker}", "list the brokers with `ottla cluster brokers`")
        if not moves and shape is OutputFormat.TABLE:
            print(f"broker {broker} has no replicas")
            return
        await _begin(cluster, moves, shape, wait=wait, dry_run=dry_run)

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)


async def _begin(cluster: Cluster, moves: Sequence[Move], shape: OutputFormat, *, wait: bool, dry_run: bool) -> None:
    is_text = shape is OutputFormat.TABLE
    if dry_run:
        await _show_plan(cluster, moves, shape)
        if is_text:
            print(f"would move {len(moves)} partitions; nothing was changed")
        return
    outcomes = await replica_admin.alter_reassignments(cluster, {move.tp: move.wanted for move in moves})
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="partition")
    if is_text:
        print(f"moving {len(moves)} partitions", flush=True)
    if wait:
        await _wait(cluster, {move.tp for move in moves})
        undone = await _undone(cluster, moves)
        changed = NoReassignmentInProgress("the move was canceled, or replaced by another one")
        report_failures([(str(move.tp), changed if move.tp in undone else None) for move in moves], what="partition")
    if not is_text:
        show_results([ItemResult(str(move.tp), "moved" if wait else "moving") for move in moves], shape)
    elif wait:
        print(f"moved {len(moves)} partitions")


async def _wait(cluster: Cluster, moving: Collection[TopicPartition]) -> None:
    """Wait until none of these is moved any more; shows the progress in percent of the bytes to copy."""
    shown, shown_s, clock = "", 0.0, SystemClock()
    with ProgressBar("moved", total=100) as bar:
        while left := [
            reassignment
            for reassignment in await replica_admin.list_reassignments(cluster)
            if reassignment.tp in moving
        ]:
            rows = await _status(cluster, left)
            whole, copied = (sum(row[name] or 0 for row in rows) for name in ("size_bytes", "copied_bytes"))
            done = len(moving) - len(left)
            bar.update((100 * done + (100 * copied // whole if whole else 0) * len(left)) // len(moving))
            text = (
                f"{done} of {len(moving)} partitions moved; {bytes_text(copied)} of {bytes_text(whole)} of the others"
            )
            if not sys.stderr.isatty() and text != shown and clock.monotonic() - shown_s >= _PROGRESS_S:
                show_notice(text)
                shown, shown_s = text, clock.monotonic()
            await asyncio.sleep(_PROGRESS_POLL_S)


async def _undone(cluster: Cluster, moves: Sequence[Move]) -> set[TopicPartition]:
    """Return the partitions that have other replicas than planned, after brokers had time to learn of the last ones."""
    undone: set[TopicPartition] = set()
    for _ in range(_SETTLING_POLLS):
        found, _racks = await _replicas(cluster, sorted({move.tp.topic for move in moves}))
        undone = {move.tp for move in moves if found.get(move.tp) != move.wanted}
        if not undone:
            break
        await asyncio.sleep(_POLL_S)
    return undone


async def _status(cluster: Cluster, running: Sequence[Reassignment]) -> list[dict[str, Any]]:
    if not running:
        return []
    info = await cluster.refresh(sorted({reassignment.tp.topic for reassignment in running}))
    sizes = await replica_admin.replica_sizes(cluster, info.nodes.keys())
    rows = []
    for each in running:
        leader = next(p.leader_id for p in info.topics[each.tp.topic].partitions if p.partition == each.tp.partition)
        whole = sizes.get(leader, {}).get(each.tp, 0) * len(each.adding)
        copied = sum(sizes.get(replica, {}).get(each.tp, 0) for replica in each.adding)
        rows.append(
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "replicas": list(each.replicas),
                "adding": list(each.adding),
                "removing": list(each.removing),
                "progress": f"{min(100 * copied // whole, 100) if whole > 0 else 100} %" if leader in sizes else None,
                "size_bytes": whole if leader in sizes else None,
                "copied_bytes": min(copied, whole) if leader in sizes else None,
            }
        )
    return rows


async def _replicas(
    cluster: Cluster, texts: Sequence[str] | None
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None]]:
    """Return the replicas of the partitions of topics, and the racks of the live brokers."""
    topics = {topic.name: topic for topic in await admin.list_topics(cluster)}
    names = topics.keys() if texts is None or not texts else select(texts, topics, what="topic")
    current = {TopicPartition(name, p.partition): p.replicas for name in names for p in topics[name].partitions}
    return current, {node.node_id: node.rack for node in cluster.info.nodes.values()}


async def _show_plan(cluster: Cluster, moves: Sequence[Move], shape: OutputFormat) -> None:
    """Print a plan: in JSON as Kafka's tools read it, in a table with the bytes to copy."""
    if shape is OutputFormat.JSON:
        partitions = [
            {"topic": move.tp.topic, "partition": move.tp.partition, "replicas": list(move.wanted)} for move in moves
        ]
        show_json({"version": 1, "partitions": partitions})
        return
    sizes = await _bytes_to_copy(cluster, moves)
    rows = [
        {
            "topic": move.tp.topic,
            "partition": move.tp.partition,
            "replicas": list(move.replicas),
            "wanted": list(move.wanted),
            "to_copy": bytes_text(sizes[move.tp]),
        }
        for move in moves
    ]
    show_rows(rows, _PLAN_COLUMNS, shape, empty="nothing to move")
    if moves:
        known = [size for size in sizes.values() if size is not None]
        unknown = f", and {len(moves) - len(known)} partitions of unknown size" if len(known) < len(moves) else ""
        print(f"to copy: {bytes_text(sum(known))}{unknown}")


async def _bytes_to_copy(cluster: Cluster, moves: Sequence[Move]) -> dict[TopicPartition, int | None]:
    """Return for each move the size of the largest replica times the number of new ones; None if unknown."""
    sizes = await replica_admin.replica_sizes(cluster, {broker for move in moves for broker in move.replicas})
    found: dict[TopicPartition, int | None] = {}
    for move in moves:
        held = [by_tp[move.tp] for broker in move.replicas if move.tp in (by_tp := sizes.get(broker, {}))]
        found[move.tp] = max(held) * move.added if held else None
    return found


async def _alter_log_dirs(cluster: Cluster, directories: Mapping[tuple[int, TopicPartition], str]) -> None:
    """Begin the moves between directories. A replica that its broker does not have yet will be created there."""
    outcomes = await log_dirs.alter_log_dirs(cluster, directories)
    failed = [
        (outcome.name, outcome.error) for outcome in outcomes if not isinstance(outcome.error, ReplicaNotAvailable)
    ]
    report_failures(failed, what="replica")


def _refusal(move: Move, known: Collection[TopicPartition]) -> KafkaError | None:
    """Return the error with which the controller would refuse a move, as far as it is known here."""
    if move.tp not in known:
        return UnknownTopicOrPartition("there is no such partition")
    if not move.wanted:
        return InvalidReplicaAssignment("the plan has no replicas for it")
    if len(set(move.wanted)) < len(move.wanted):
        return InvalidReplicaAssignment(f"the plan names a broker twice: {', '.join(map(str, move.wanted))}")
    return None


def _read_plan(file: str) -> tuple[dict[TopicPartition, list[int]], dict[tuple[int, TopicPartition], str]]:
    """Return the replicas of each partition, and the log directories of those for which one is chosen."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        wanted: dict[TopicPartition, list[int]] = {}
        directories: dict[tuple[int, TopicPartition], str] = {}
        for each in json.loads(text)["partitions"]:
            tp = TopicPartition(str(each["topic"]), int(each["partition"]))
            wanted[tp] = [int(replica) for replica in each["replicas"]]
            chosen = each.get("log_dirs") or [_ANY_DIRECTORY] * len(wanted[tp])
            for replica, path in zip(wanted[tp], chosen, strict=True):
                if path != _ANY_DIRECTORY:
                    directories[replica, tp] = str(path)
    except OSError as error:
        raise usage_error(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = error.reason if isinstance(error, UnicodeDecodeError) else error
        raise usage_error(f"{file} is not a plan: {why}", "make one: ottla cluster reassign plan -f json") from None
    return wanted, directories


def _ids(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise usage_error(f"{option} {text}: write ids of brokers, such as 1,2,3") from None


# ---- Leaders


def leaders(
    topics: Topics = None,
    elect: Annotated[
        ElectionOption | None,
        typer.Option("--elect", help="Elect the preferred leaders; or, where none is in sync, any live replica."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept that --elect unclean may lose records.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show how many partitions each broker leads, and how many it would lead if every preferred leader led."""
    if elect is ElectionOption.UNCLEAN and not yes:
        raise usage_error("--elect unclean may lose acknowledged records", "add --yes to accept that")

    async def work(cluster: Cluster) -> tuple[list[admin.Outcome], dict[int, tuple[int, int, int]]]:
        outcomes: list[admin.Outcome] = []
        if elect is not None:
            outcomes = await _elect(cluster, elect, topics)
        current, _ = await _replicas(cluster, topics)
        info = cluster.info.topics
        found: Mapping[TopicPartition, tuple[int, Sequence[int]]] = {
            tp: (next(p.leader_id for p in info[tp.topic].partitions if p.partition == tp.partition), replicas)
            for tp, replicas in current.items()
        }
        counts = dict.fromkeys(cluster.info.nodes, (0, 0, 0)) | leaders_by_broker(found)
        return outcomes, counts

    outcomes, counts = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    rows = [
        {"broker": broker, "leaders": led, "preferred": preferred, "replicas": held}
        for broker, (led, preferred, held) in sorted(counts.items())
    ]
    show_rows(rows, ["broker", "leaders", "preferred", "replicas"], shape, empty="no partitions")
    report_failures(
        [(outcome.name, outcome.error) for outcome in outcomes if outcome.error is not None], what="partition"
    )


async def _elect(cluster: Cluster, elect: ElectionOption, topics: Sequence[str] | None) -> list[admin.Outcome]:
    partitions = None
    if topics or elect is ElectionOption.UNCLEAN:
        current, _ = await _replicas(cluster, topics)
        info = cluster.info.topics
        partitions = [
            tp
            for tp in current
            if elect is ElectionOption.PREFERRED
            or next(p.leader_id for p in info[tp.topic].partitions if p.partition == tp.partition) < 0
        ]
    kind = ElectionType.PREFERRED if elect is ElectionOption.PREFERRED else ElectionType.UNCLEAN
    return await replica_admin.elect_leaders(cluster, kind, partitions)
