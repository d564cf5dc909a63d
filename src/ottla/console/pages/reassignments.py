"""The moves of replicas that are under way, with their progress; and how to begin and cancel one."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from ottla.client.partition_health import running_moves
from ottla.client.replica_admin import Reassignment, alter_reassignments, replica_sizes
from ottla.console.pages.page import Page
from ottla.console.plans import Plan, carry_out
from ottla.console.visit import Refused, Visit, whole_number
from ottla.core.ids import TopicPartition
from ottla.http.web import Response


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """A move, with the bytes that its new replicas have of those that they need."""

    move: Reassignment
    copied_bytes: int | None
    whole_bytes: int | None


async def reassignments(visit: Visit) -> Response:
    """List the moves that are under way."""
    snapshot, cluster = await visit.snapshot(), await visit.cluster()
    moves = await running_moves(cluster)
    sizes = await replica_sizes(cluster, list(cluster.info.nodes)) if moves.running else {}
    rows = []
    for move in moves.running:
        topic = snapshot.topics.get(move.tp.topic)
        leader = next((p.leader_id for p in topic.partitions if p.partition == move.tp.partition), -1) if topic else -1
        if leader not in sizes:
            rows.append(MoveProgress(move, None, None))
            continue
        whole = sizes[leader].get(move.tp, 0) * len(move.adding)
        copied = sum(sizes.get(replica, {}).get(move.tp, 0) for replica in move.adding)
        rows.append(MoveProgress(move, min(copied, whole), whole))
    return visit.page(
        "reassignments.html",
        title="Reassignments",
        rows=rows[:500],
        count=len(rows),
        refusal=moves.refusal,
        brokers=[broker.node_id for broker in snapshot.brokers if not broker.trouble],
        cli=visit.cli("cluster", "reassign", "status"),
    )


async def begin(visit: Visit) -> Response:
    """Begin to move the replicas of one partition, or cancel the move."""
    snapshot, cluster = await visit.snapshot(), await visit.cluster()
    name, number = visit.field("topic").strip(), visit.field("partition").strip()
    topic = snapshot.topics.get(name)
    partition = None if topic is None else whole_number(number, len(topic.partitions) - 1)
    if topic is None or partition is None:
        raise Refused(f"there is no partition {number} of {name}")
    tp, info = TopicPartition(name, partition), topic.partitions[partition]
    is_cancel = visit.field("cancel") == "1"
    try:
        replicas = [] if is_cancel else [int(broker) for broker in visit.field("replicas").replace(",", " ").split()]
    except ValueError:
        raise Refused("write the ids of brokers, such as 1, 2, 3") from None
    known = {broker.node_id for broker in snapshot.brokers}
    if not is_cancel and (not replicas or len(set(replicas)) < len(replicas) or not known.issuperset(replicas)):
        raise Refused(f"write ids of brokers, broker once: there are {', '.join(map(str, sorted(known)))}")

    async def apply() -> str:
        (outcome,) = await alter_reassignments(cluster, {tp: None if is_cancel else replicas})
        if outcome.error is not None:
            raise outcome.error
        return f"Cancelled the move of {tp}." if is_cancel else f"The replicas of {tp} move to {replicas}."

    line = visit.cli("cluster", "reassign", "cancel", name)
    if not is_cancel:
        document = {"version": 1, "partitions": [{"topic": name, "partition": tp.partition, "replicas": replicas}]}
        line = f"echo {shlex.quote(json.dumps(document))} | {visit.cli('cluster', 'reassign', 'apply', '-')}"
    plan = Plan(
        f"Cancel the move of {tp}" if is_cancel else f"Move the replicas of {tp}",
        line,
        "/reassignments",
        apply,
        ("Partition", "Replicas now", "Then"),
        [[str(tp), ", ".join(map(str, info.replicas)), "as before" if is_cancel else ", ".join(map(str, replicas))]],
        note="" if is_cancel else "The new replicas copy the whole partition; the first one leads when it is in sync.",
        button="Cancel move" if is_cancel else "Begin move",
    )
    return await carry_out(visit, plan)


PAGES = (Page("/reassignments", reassignments), Page("/reassignments", begin, "POST"))
