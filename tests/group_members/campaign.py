"""Restarts the members of a group one process after another, and checks what they owned and what was acknowledged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.groups import GroupDescription, committed_offsets, describe_group
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition

SETTLES_WITHIN_S = 120
T = TypeVar("T")


class Event(NamedTuple):
    """One line of a worker's log."""

    ns: int
    member: str
    what: str
    generation: int
    partition: int
    offset: int


class Step(NamedTuple):
    """A change of the members, and how long it took until the group was stable with them."""

    what: str
    members: int
    seconds: float


@dataclass
class Campaign:
    """One group: its processes, each with some members."""

    bootstrap: str
    group: str
    directory: Path
    partitions: int
    session_ms: int = 30_000
    workers: dict[str, tuple[subprocess.Popen[bytes], int]] = field(default_factory=dict)
    ended_ns: dict[str, int] = field(default_factory=dict)  # when a worker was killed
    steps: list[Step] = field(default_factory=list)
    starts: int = 0

    @property
    def topic(self) -> str:
        return f"{self.group}-topic"

    def begin(self) -> None:
        """Create the topic."""

        async def create(cluster: Cluster) -> None:
            await create_topics(cluster, [NewTopic(self.topic, partitions=self.partitions)])

        self.directory.mkdir(parents=True, exist_ok=True)
        self.with_cluster(create)

    def with_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run work on a connection of its own."""

        async def main() -> T:
            async with await Cluster.connect(parse_addresses(self.bootstrap)) as cluster:
                return await work(cluster)

        return asyncio.run(main())

    # ---- Members

    def start(self, client: str, members: int) -> str:
        """Start a process with some members."""
        self.starts += 1
        name = f"{client}_{self.starts}"
        command = [
            sys.executable,
            "-m",
            "tests.group_members.worker",
            "--bootstrap",
            self.bootstrap,
            "--group",
            self.group,
            "--topic",
            self.topic,
            "--name",
            name,
            "--client",
            client,
            "--members",
            str(members),
            "--session-ms",
            str(self.session_ms),
            "--log",
            str(self.directory / f"{name}.log"),
        ]
        with (self.directory / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)
        self.workers[name] = (process, members)
        return name

    def stop(self, name: str, *, kill: bool = False) -> int:
        """End a process: its members leave, or with `kill` say nothing. Returns how many there were."""
        process, members = self.workers.pop(name)
        assert process.stdin is not None
        if kill:
            process.kill()
            process.wait()
            self.ended_ns[name] = time.monotonic_ns()
            process.stdin.close()
        else:
            process.stdin.close()
            assert process.wait(SETTLES_WITHIN_S) == 0, (self.directory / f"{name}.err").read_text()[-2000:]
        return members

    def restart(self, name: str, *, kill: bool = False) -> None:
        """End a process and start another with as many members."""
        client = name.partition("_")[0]
        members = self.stop(name, kill=kill)
        self.start(client, members)

    def settle(self, what: str) -> None:
        """Wait until the group is stable with all members, and note how long it took."""
        began, wanted = time.monotonic(), sum(members for _, members in self.workers.values())
        while True:
            found = self.described()
            if found is not None and found.state == "Stable" and len(found.members) == wanted:
                break
            assert time.monotonic() - began < SETTLES_WITHIN_S, f"{what}: {found and (found.state, len(found.members))}"
            time.sleep(0.2)
        self.steps.append(Step(what, wanted, time.monotonic() - began))

    def described(self) -> GroupDescription | None:
        """Describe the group; None while it does not exist."""

        async def describe(cluster: Cluster) -> GroupDescription | None:
            try:
                return await describe_group(cluster, self.group)
            except KafkaError:
                return None

        return self.with_cluster(describe)

    def end(self) -> None:
        """Stop all members, cleanly."""
        for name in list(self.workers):
            self.stop(name)

    # ---- Checks

    def events(self) -> list[Event]:
        """Read the events of all members, in the order of time."""
        found = []
        for path in self.directory.glob("*.log"):
            for line in path.read_text(encoding="ascii").splitlines():
                ns, member, what, *numbers = line.split()
                if len(numbers) == 3:
                    generation, partition, offset = map(int, numbers)
                    found.append(Event(int(ns), member, what, generation, partition, offset))
        return sorted(found)

    def check(self) -> int:
        """Check owners and offsets; returns how many commits were acknowledged."""
        owners: dict[int, str] = {}
        in_generation: dict[tuple[int, int], str] = {}
        acknowledged: defaultdict[int, int] = defaultdict(int)
        commits = 0
        for event in self.events():
            where = f"partition {event.partition} at {event.ns}"
            match event.what:
                case "assigned":
                    owner = owners.get(event.partition)
                    assert owner is None or self._was_killed_before(owner, event.ns), (
                        f"{where}: {owner}, {event.member}"
                    )
                    owners[event.partition] = event.member
                    if event.generation >= 0:
                        key = (event.generation, event.partition)
                        assert in_generation.setdefault(key, event.member) == event.member, f"two owners: {where}"
                    lost = f"{where}: offset {acknowledged[event.partition]} was acknowledged, {event.offset} found"
                    assert event.offset >= acknowledged[event.partition], lost
                case "revoked":
                    if owners.get(event.partition) == event.member:
                        del owners[event.partition]
                case "acknowledged":
                    commits += 1
                    acknowledged[event.partition] = max(acknowledged[event.partition], event.offset)

        async def committed(cluster: Cluster) -> dict[int, int]:
            wanted = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            found = await committed_offsets(cluster, self.group, wanted)
            return {where.partition: each.offset for where, each in found.items()}

        now = self.with_cluster(committed)
        lost_ones = {
            number: (offset, now.get(number)) for number, offset in acknowledged.items() if now.get(number, -1) < offset
        }
        assert not lost_ones, f"acknowledged commits are lost: {lost_ones}"
        return commits

    def _was_killed_before(self, member: str, ns: int) -> bool:
        return self.ended_ns.get(member.rpartition("-")[0], ns) < ns


def rolling_restarts(campaign: Campaign, clients: tuple[str, ...], members: int, processes: int) -> int:
    """Start the members in some processes, restart each process, and check; returns the acknowledged commits."""
    campaign.begin()
    try:
        shares = [members // processes + (number < members % processes) for number in range(processes)]
        for number, share in enumerate(shares):
            campaign.start(clients[number % len(clients)], share)
        campaign.settle("start")
        time.sleep(2)
        for name in list(campaign.workers):
            campaign.restart(name)
            campaign.settle("restart of one process")
            time.sleep(1)
    finally:
        campaign.end()
    return campaign.check()
