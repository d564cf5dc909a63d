"""Measures groups beside a real Kafka's: rebalances of many members, commits a second, and heartbeats.

The members are bare sockets that join and sync as a client would, all at once, so that the brokers are measured and not
the clients: a real member notices a rebalance with its next heartbeat, up to three seconds later.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.brokers import kafka, ottla
from benchmarks.progress import Progress
from benchmarks.report import GROUPS_TITLE, machine, today, write_part
from tests.support.wire_client import Wire

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
MEMBERS = (1, 10, 50, 200)
JOIN, SYNC, HEARTBEAT, COMMIT = 5, 3, 3, 7  # versions that librdkafka uses
TOPIC = "measured"
NO_DELAY = "group.initial.rebalance.delay.ms"
Figures = dict[str, list[float]]


class Member:
    """One member of a group, on a connection of its own."""

    def __init__(self, port: int, group: str) -> None:
        self.wire = Wire(port, timeout_s=60)
        self.fields: dict[str, Any] = {
            "group_id": group,
            "session_timeout": 30_000,
            "session_timeout_ms": 30_000,
            "rebalance_timeout": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "group_instance_id": None,
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1m\xff\xff\xff\xff"}],
        }
        self.member_id, self.generation = "", -1

    def get_id(self) -> None:
        """Ask for a member id (KIP-394)."""
        self.member_id = self.wire.call("join_group", JOIN, member_id="", **self.fields)["member_id"]

    def join(self) -> int:
        """Send JoinGroup; returns its correlation id."""
        return self.wire.send("join_group", JOIN, member_id=self.member_id, **self.fields)

    def identity(self) -> dict[str, Any]:
        """Return the fields that name the member in other requests."""
        group = self.fields["group_id"]
        return {"group_id": group, "generation_id": self.generation, "member_id": self.member_id}


def rebalance(members: list[Member]) -> float:
    """Have the leader start a rebalance and all join and sync; returns the seconds until the last has its assignment.

    `members` begins with the leader.
    """
    leader, others = members[0], members[1:]
    began = time.perf_counter()
    waiting = [leader.join()]
    if others and others[0].generation >= 0:  # followers that join before the rebalance begins are answered at once
        while leader_is_alone(others[0]):
            pass
    waiting += [each.join() for each in others]
    plan: list[dict[str, Any]] = []
    for member, number in zip(members, waiting, strict=True):
        joined = member.wire.receive("join_group", JOIN, number)
        assert joined["error_code"] == 0, joined
        member.generation = joined["generation_id"]
        plan = plan or [{"member_id": each["member_id"], "assignment": b"\0" * 20} for each in joined["members"]]
    syncs = [
        each.wire.send("sync_group", SYNC, **each.identity(), assignments=plan if each is leader else [])
        for each in members
    ]
    for member, number in zip(members, syncs, strict=True):
        _none(member.wire.receive("sync_group", SYNC, number))
    return time.perf_counter() - began


def leader_is_alone(follower: Member) -> bool:
    """Return whether no rebalance has begun yet."""
    return not follower.wire.call("heartbeat", HEARTBEAT, **follower.identity())["error_code"]


def rate(call: Callable[[int], None], seconds: float) -> float:
    """Return how many calls a second succeed, one after another."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        call(count)
        count += 1
    return count / (time.perf_counter() - began)


def measure(port: int, count: int, seconds: float, figures: Figures) -> None:
    """Measure one group of `count` members."""
    group = f"group-{count}-{time.perf_counter_ns()}"
    members = [Member(port, group) for _ in range(count)]
    try:
        members[0].get_id()
        rebalance(members[:1])  # without a delay the first rebalance does not wait for others
        for member in members[1:]:
            member.get_id()  # the next one waits for all that have an id
        rebalance(members)
        times = [rebalance(members) for _ in range(3)]
        figures.setdefault(f"rebalance of {count} members, ms", []).append(statistics.median(times) * 1000)
        first = members[0]
        beats = rate(lambda _: _none(first.wire.call("heartbeat", HEARTBEAT, **first.identity())), seconds)
        figures.setdefault(f"heartbeats/s of one member of {count}", []).append(beats)
        if count == MEMBERS[0]:
            figures.setdefault("commits/s of one member", []).append(rate(lambda n: commit([first], n), seconds))
        elif count == MEMBERS[-1]:
            together = members[:16]
            per_second = len(together) * rate(lambda n: commit(together, n), seconds)
            figures.setdefault("commits/s of 16 members", []).append(per_second)
    finally:
        for member in members:
            member.wire.close()


def commit(members: list[Member], number: int) -> None:
    """Have members commit at the same time, and wait for all."""
    partition = {
        "partition_index": 0,
        "committed_offset": number,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    topics = [{"name": TOPIC, "partitions": [partition]}]
    waiting = [
        each.wire.send(
            "offset_commit", COMMIT, **each.identity(), generation_id_or_member_epoch=each.generation, topics=topics
        )
        for each in members
    ]
    for member, sent in zip(members, waiting, strict=True):
        _none(member.wire.receive("offset_commit", COMMIT, sent)["topics"][0]["partitions"][0])


def _none(answer: dict[str, Any]) -> None:
    assert answer["error_code"] == 0, answer


def prepare(port: int) -> None:
    """Create the topics, and wait for the coordinator."""
    with Wire(port, timeout_s=60) as wire:
        new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        wire.call("create_topics", 5, topics=[new], timeout=20_000)
        give_up = time.perf_counter() + 60
        while time.perf_counter() < give_up:
            wire.call("find_coordinator", 3, key="any", key_type=0)
            if wire.call("describe_groups", 5, groups=["any"])["groups"][0]["error_code"] == 0:
                return
            time.sleep(0.2)


def main() -> None:
    """Run the brokers beside each other and measure them in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement of a rate")
    parser.add_argument("--no-page", action="store_true", help="print only")
    asked = parser.parse_args()
    progress, found = Progress(), dict[str, Figures]()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        running = {
            "Kafka": kafka(Path(scratch) / "kafka", **{NO_DELAY: "0"})[0],
            "Ottla": ottla(Path(scratch) / "cache", "-o", f"{NO_DELAY}=0", "-o", "durability=page-cache")[0],
            "Ottla, fsync": ottla(Path(scratch) / "fsync", "-o", f"{NO_DELAY}=0")[0],
        }
        for broker in running.values():
            stack.callback(broker.stop)
            prepare(broker.port)
        for number in range(asked.rounds + 1):  # the first one warms them
            names = list(running) if number % 2 else list(reversed(running))
            for name in names:
                figures = found.setdefault(name, {}) if number else {}
                for count in MEMBERS:
                    measure(running[name].port, count, asked.seconds, figures)
    lines = [
        f"Measured {today()} on {machine()}. Medians of {asked.rounds} rounds in turn.",
        "Rebalances: all members, bare sockets, join and sync at once. Rates are better if higher, times if lower.",
        "",
        "| | " + " | ".join(found) + " |",
        "| --- |" + " ---: |" * len(found),
    ]
    for figure in next(iter(found.values())):
        values = [statistics.median(figures[figure]) for figures in found.values()]
        lines.append(f"| {figure} | " + " | ".join(f"{value:,.1f}" for value in values) + " |")
    for line in lines:
        progress.line(line)
    if not asked.no_page:
        write_part(PAGE, GROUPS_TITLE, lines)


if __name__ == "__main__":
    main()
