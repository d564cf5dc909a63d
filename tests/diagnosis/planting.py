"""What plants faults for the table: brokers of the public kit, a client, raw requests of members and producers."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.cli.connection import SETTINGS_VARIABLE, ConnectionOptions
from ottla.cli.diagnosis import find, lines_of
from ottla.client import groups
from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.consumer_protocol import write_subscription
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.diagnosis.rule import Finding, Subject
from ottla.testing.kit.kafka import Kafka
from ottla.wire.apis import ApiKey
from ottla.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

EVENTS = {"ottla.events.topic.enable": "true", "ottla.events.topic.num.partitions": "4"}
DEADLINE_S = 15.0
MINUTE_MS = 60_000


@dataclass
class Planted:
    """Brokers with a client of them, while a fault is there."""

    k: Kafka
    directory: Path
    stack: AsyncExitStack
    connected: Cluster | None = None
    target: str = ""  # in place of the brokers' addresses
    settings: Mapping[str, str] = field(default_factory=dict)
    now_ms: int = 0  # of the client; 0: of the brokers

    @property
    def cluster(self) -> Cluster:
        """Return the client of the brokers."""
        assert self.connected is not None, "the fault lets clients connect"
        return self.connected

    async def on_brokers(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine function of the cluster on the brokers' loop."""
        return await asyncio.to_thread(self.k._call, work)

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a group without members."""
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        await groups.commit_offsets(self.cluster, group, wanted)

    async def join(
        self,
        group: str,
        topic: str,
        *,
        instance_id: str | None = None,
        protocol: str = "range",
        client_id: str = "app",
        member_id: str = "",
        rebalance_ms: int = 60_000,
    ) -> Any:
        """Send a JoinGroup of a client of its own; with a new member id a second time."""
        client = await self.client(client_id)
        node = await client.coordinator(group)
        for _ in range(2):
            answer = await client.request(
                node,
                ApiKey.JOIN_GROUP,
                JoinGroupRequest(
                    group_id=group,
                    session_timeout_ms=45_000,
                    rebalance_timeout_ms=rebalance_ms,
                    member_id=member_id,
                    group_instance_id=instance_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name=protocol, metadata=write_subscription([topic]))],
                ),
            )
            if answer.error_code != 79:
                break
            member_id = answer.member_id
        return answer

    async def sync(self, group: str, joined: Any, assignments: Mapping[str, bytes] | None = None) -> None:
        """Send a SyncGroup; of the leader with the assignments."""
        node = await self.cluster.coordinator(group)
        await self.cluster.request(
            node,
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in (assignments or {}).items()
                ],
            ),
        )

    async def leave(self, group: str, member_id: str, reason: str = "") -> None:
        """Send a LeaveGroup."""
        node = await self.cluster.coordinator(group)
        members = [MemberIdentity(member_id=member_id, reason=reason)]
        await self.cluster.request(node, ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=group, members=members))

    async def client(self, client_id: str) -> Cluster:
        """Connect with a client id of its own."""
        options = ClientOptions(client_id=client_id, retry_s=5.0)
        connecting = Cluster.connect(parse_addresses(self.k.bootstrap), options=options)
        return await self.stack.enter_async_context(await connecting)

    def task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something while the fault is there."""
        task = asyncio.ensure_future(work)
        self.stack.callback(task.cancel)


Plant = Callable[[Planted], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One row of the table: what is planted, the command that is asked, and the line that must come first."""

    name: str
    command: str  # without `ottla`
    line: str  # a regular expression
    fix: str
    plant: Plant
    brokers: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def kit(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Return what faults that share brokers have in common."""
        return self.brokers, tuple(sorted(self.options.items()))


async def ask(planted: Planted, command: str) -> list[Finding]:
    """Ask as the command does."""
    words = shlex.split(command)
    subject, name = (Subject.CLUSTER, "") if words[0] == "doctor" else (Subject(words[1]), words[2])
    target = ConnectionOptions(brokers=planted.target or planted.k.bootstrap, timeout_s=10)
    now_ms = planted.now_ms or planted.k.now_ms()
    return (await find(subject, name, target, now_ms=now_ms)).findings


async def first_lines(planted: Planted, fault: Fault, monkeypatch: Any) -> tuple[str, str]:
    """Return the first lines that the command prints; they are asked for until they are right, or the deadline."""
    monkeypatch.setenv(SETTINGS_VARIABLE, "\n".join(f"{name}={value}" for name, value in planted.settings.items()))
    monotonic = SystemClock().monotonic
    end = monotonic() + DEADLINE_S
    while True:
        lines = [*lines_of(await ask(planted, fault.command)), "", ""]
        if re.search(fault.line, lines[0]) or monotonic() > end:
            return lines[0], lines[1]
        await asyncio.sleep(0.05)
