"""`ottla cluster health`: checks brokers, disks, controller and partitions, and waits until all is well."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed, ExitCode, show_notice
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout, parse_seconds
from ottla.cli.output import alert, show_fields, show_json
from ottla.client.cluster_health import ClusterHealth, check_cluster
from ottla.client.metadata import TopicInfo
from ottla.client.partition_health import UnhealthyPartition, count_health
from ottla.core.clock import SystemClock

_POLL_S = 1.0
_TOPICS_MAX = 20
"""More topics with problems are counted, unless every partition is to be shown."""


def health(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each partition.")] = False,
    wait_s: Annotated[
        float | None,
        typer.Option("--wait", parser=parse_seconds, metavar="TIME", help="Wait until all is well: 30s, 5m."),
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Check that brokers answer, disks take records, and partitions have leaders and are in sync.

    Prints the worst problems first. Ends with exit code 1 if there are any.
    """
    target = ConnectionOptions(brokers, profile, timeout)
    found = run_on_cluster(target, check_cluster) if wait_s is None else _wait_until_healthy(target, wait_s)
    problems = problems_of(found, verbose=verbose)
    if shape is OutputFormat.JSON:
        show_json({**_summary(found), "problems": problems, **(_partitions(found) if verbose else {})})
    else:
        show_fields(_summary(found), shape)
        for problem in problems:
            print(alert(f"  {problem}"))
    if problems:
        raise CommandFailed("the cluster is not healthy", code=ExitCode.FAILED)


def _wait_until_healthy(target: ConnectionOptions, wait_s: float) -> ClusterHealth:
    """Check until all is well or the time is over; each change of the problems is printed. Returns the last state."""
    clock = SystemClock()
    end, shown = clock.monotonic() + wait_s, ""
    while True:
        try:
            found = run_on_cluster(target, check_cluster)
        except CommandFailed as failed:
            if failed.code not in {ExitCode.CANNOT_CONNECT, ExitCode.TIMED_OUT} or clock.monotonic() >= end:
                raise
            problems = [str(failed.args[0])]
        else:
            problems = problems_of(found)
            if not problems or clock.monotonic() >= end:
                return found
        others = f" (and {len(problems) - 1} other problems)" if len(problems) > 1 else ""
        if problems[0] + others != shown:
            shown = problems[0] + others
            show_notice(f"waiting: {shown}")
        time.sleep(min(_POLL_S, max(end - clock.monotonic(), 0)))


def problems_of(found: ClusterHealth, *, verbose: bool = False) -> list[str]:
    """Describe the problems, the worst first."""
    problems = []
    if found.missing:
        problems.append(f"missing: {', '.join(map(str, found.missing))} (replicas name them)")
    problems += [f"broker {node} does not answer: {why}" for node, why in found.unreachable.items()]
    problems += [f"{d.path} of broker {d.node_id} is offline until a restart" for d in found.log_dirs if d.is_offline]
    problems += [f"{d.path} of broker {d.node_id} is full: writes are refused" for d in found.log_dirs if d.is_full]
    problems += found.store_troubles
    if not found.has_controller:
        problems.append("the cluster has no controller")
    elif found.moves.refusal:
        controller = found.described.controller_id
        problems.append(f"the controller, broker {controller}, does not answer: {found.moves.refusal}")
    return problems + (
        [partition_line(partition) for partition in found.partitions]
        if verbose
        else topic_lines(found.topics, found.partitions)
    )


def partition_line(partition: UnhealthyPartition) -> str:
    """Describe the problem of one partition.

    >>> from ottla.core.ids import TopicPartition
    >>> partition_line(UnhealthyPartition(TopicPartition("web", 0), False, 1, 3, 2))
    'web-0 has 1 of 3 in sync, too few for acks=all'
    """
    return f"{partition.tp} has {_problem(partition)}"


def topic_lines(topics: Sequence[TopicInfo], unhealthy: Iterable[UnhealthyPartition]) -> list[str]:
    """Describe the partitions with a problem in one line for each topic, and one for all internal topics, the last."""
    by_topic = defaultdict[str, list[UnhealthyPartition]](list)
    for unhealthy_partition in unhealthy:
        by_topic[unhealthy_partition.tp.topic].append(unhealthy_partition)
    users = [topic for topic in topics if topic.name in by_topic and not topic.internal]
    users.sort(key=lambda topic: (min(map(_weight, by_topic[topic.name])), topic.name))
    lines = [_line(topic.name, len(topic.partitions), by_topic[topic.name]) for topic in users[:_TOPICS_MAX]]
    if len(users) > _TOPICS_MAX:
        lines.append(f"{len(users) - _TOPICS_MAX} other topics have partitions like these (--verbose lists all)")
    internal = [topic for topic in topics if topic.name in by_topic and topic.internal]
    if internal:
        name = f"internal topics ({', '.join(topic.name for topic in internal)})"
        total = sum(len(topic.partitions) for topic in internal)
        lines.append(_line(name, total, [partition for topic in internal for partition in by_topic[topic.name]]))
    return lines


def _line(name: str, total: int, unhealthy: Collection[UnhealthyPartition]) -> str:
    counts = Counter(_problem(partition) for partition in sorted(unhealthy, key=_weight))
    parts = list[str]()
    for problem, count in counts.items():
        of_all = "" if parts else f" of {total} partitions"
        parts.append(f"{count}{of_all} {'has' if count == 1 else 'have'} {problem}")
    return f"{name}: {'; '.join(parts)}"


def _problem(partition: UnhealthyPartition) -> str:
    if partition.is_offline:
        return "no leader"
    too_few = ", too few for acks=all" if partition.is_under_min_isr else ""
    return f"{partition.in_sync} of {partition.replicas} in sync{too_few}"


def _weight(partition: UnhealthyPartition) -> tuple[bool, bool, int]:
    return not partition.is_offline, not partition.is_under_min_isr, partition.in_sync


def _summary(found: ClusterHealth) -> dict[str, Any]:
    is_known = found.has_controller and not found.moves.refusal
    return {
        "healthy": not problems_of(found),
        "brokers": len(found.described.nodes),
        "missing_brokers": list(found.missing),
        "unreachable_brokers": list(found.unreachable),
        "controller": found.described.controller_id,
        "topics": len(found.topics),
        "partitions": sum(len(topic.partitions) for topic in found.topics),
        **count_health(found.partitions)._asdict(),
        "moving": len(found.moves.running) if is_known else None,
        "log_directories": len(found.log_dirs),
        "offline_directories": sum(log_dir.is_offline for log_dir in found.log_dirs),
        "full_directories": sum(log_dir.is_full for log_dir in found.log_dirs),
    }


def _partitions(found: ClusterHealth) -> dict[str, Any]:
    rows = [
        {
            "topic": partition.tp.topic,
            "partition": partition.tp.partition,
            "has_leader": not partition.is_offline,
            "in_sync": partition.in_sync,
            "replicas": partition.replicas,
        }
        for partition in found.partitions
    ]
    return {"unhealthy_partitions": rows}
