"""Finds why something is not well, for the pages that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.client.partition_health import UnhealthyPartition
from ottla.client.transaction_admin import TransactionDescription
from ottla.console import texts
from ottla.console.snapshot import BrokerState, Snapshot


@dataclass(frozen=True, slots=True)
class Reason:
    """One line with the cause, one with what helps, and the command that shows more."""

    cause: str
    advice: str
    command: tuple[str, ...] = ()
    link: str = ""


class Reasons:
    """Explains what a snapshot shows; what needs requests of its own is found by `ottla.diagnosis` (pages/why.py)."""

    def of_cluster(self, snapshot: Snapshot) -> list[Reason]:
        """Explain all that is not well in a snapshot, the worst first."""
        reasons = []
        if snapshot.described.controller_id < 0:
            reasons.append(Reason("No broker is the controller.", "Start the brokers that do not run; see their logs."))
        reasons += [reason for broker in snapshot.brokers for reason in self.of_broker(broker)]
        reasons += self.of_partitions(snapshot.unhealthy, snapshot.brokers)
        return reasons

    def of_broker(self, broker: BrokerState) -> list[Reason]:
        """Explain what is not well about a broker."""
        reasons, link = [], f"/brokers/{broker.node_id}"
        name, command = f"Broker {broker.node_id}", ("cluster", "health")
        if broker.trouble:
            advice = "Start it, or check its log and its advertised.listeners."
            reasons.append(Reason(f"{name} does not answer: {broker.trouble}.", advice, command, link))
        for log_dir in broker.log_dirs:
            if log_dir.is_offline:
                advice = "Replace or repair the disk, and restart the broker."
                reasons.append(Reason(f"{name}: the log directory {log_dir.path} is offline.", advice, command, link))
            elif log_dir.is_full:
                advice = "Free space, shorten retention.ms, or move replicas to other brokers."
                reasons.append(Reason(f"{name}: the disk of {log_dir.path} is full.", advice, command, link))
        return reasons

    def of_partitions(self, partitions: Sequence[UnhealthyPartition], brokers: Sequence[BrokerState]) -> list[Reason]:
        """Explain partitions with a problem, a line for each topic and problem."""
        down = [str(member.node_id) for member in brokers if member.trouble]
        cause = f": broker {', '.join(down)} does not answer" if down else ""
        by_problem: dict[tuple[str, str], list[int]] = {}
        for member in partitions:
            problem = (
                "has no leader"
                if member.is_offline
                else "refuses acks=all (below min.insync.replicas)"
                if member.is_under_min_isr
                else "has replicas that are not in sync"
            )
            by_problem.setdefault((member.tp.topic, problem), []).append(member.tp.partition)
        return [
            Reason(
                f"{topic}: partition {_numbers(numbers)} {problem}{cause}.",
                "Start the missing brokers." if down else "Check the disks and the network of the followers.",
                ("topic", "describe", topic),
                f"/topics/{topic}",
            )
            for (topic, problem), numbers in by_problem.items()
        ]

    def of_transaction(self, transaction: TransactionDescription, now_ms: int) -> list[Reason]:
        """Explain what is not well about a transaction."""
        if transaction.start_ms is None or now_ms - transaction.start_ms < _LONG_MS:
            return []
        open_s = (now_ms - transaction.start_ms) / 1000
        cause = f"It has been open for {texts.duration(open_s)}: readers of committed records wait for it."
        advice = "Its producer may be stuck; it ends by its timeout, or abort it."
        return [Reason(cause, advice, ("txn", "abort", transaction.transactional_id))]


_LONG_MS = 60_000


def _numbers(numbers: Sequence[int]) -> str:
    """List the first numbers.

    >>> _numbers([1, 2]), _numbers(range(9))
    ('1, 2', '0, 1, 2, 3, 4 and 4 more')
    """
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
