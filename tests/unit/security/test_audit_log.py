"""The security audit log: its entries, its bounded queues, and its file that is rotated."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pytest

from ottla.core.acls import AclOperation, ResourceType
from ottla.net.identity import ConnectionIdentity
from ottla.security.audit_file import AuditFile
from ottla.security.audit_log import TEXT_CHARS_MAX, AuditEntry, AuditEventType, AuditLog, AuditQueue, encode
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_executor import SimExecutor
from ottla.wire.apis import ApiKey
from ottla.wire.headers import RequestHeader
from tests.support.storage import StillClock
from tests.support.waiting import until

pytestmark = pytest.mark.simulated_time

PATH = PurePath("/logs/audit.log")
NODE = 3
BOB = ConnectionIdentity("User", "bob")
DENIED = AuditEntry(AuditEventType.DENIED, "User:bob", resource="t")


@dataclass
class Asked:
    """What an entry has of a request."""

    header: RequestHeader = (ApiKey.FETCH, 12, 5, "app", 0)
    identity: ConnectionIdentity = BOB
    client_host: str = "10.0.0.7"
    client_id: str | None = "app"
    listener: str = "EXTERNAL"


class Written:
    """An audit file on a simulated disk, written by a simulated thread that takes a second for each write."""

    def __init__(self, *, entries_max: int = 100, bytes_max: int = 1 << 20, files_max: int = 3) -> None:
        self.disk = SimDisk()
        self.disk.make_directory(PATH.parent)
        self.executor = SimExecutor(lambda _job: 1.0)
        self.output = AuditFile(
            PATH,
            files=self.disk,
            clock=StillClock(),
            make_executor=lambda _name, _post: self.executor,
            node_id=NODE,
            entries_max=entries_max,
            bytes_max=bytes_max,
            files_max=files_max,
        )
        self.log = AuditLog([self.output], clock=StillClock())

    def lines(self, path: PurePath = PATH) -> list[dict[str, Any]]:
        file = self.disk.open(path)
        return [json.loads(line) for line in file.read_at(0, file.size()).splitlines()]


async def test_each_event_is_one_line_with_what_is_known_of_it() -> None:
    written = Written()
    written.log.signed_in(principal="User:alice", host="10.0.0.7", listener="EXTERNAL", mechanism="SCRAM-SHA-256")
    written.log.sign_in_failed(
        principal="", host="10.0.0.8", listener="EXTERNAL", mechanism="PLAIN", reason="invalid credentials"
    )
    written.log.denied(Asked(), AclOperation.READ, ResourceType.TOPIC, "orders")
    written.log.changed(Asked(), "TOPIC", "orders", error="TOPIC_ALREADY_EXISTS", details=[("partitions", "3")])
    await written.log.close()
    time = {"time": written.lines()[0]["time"], "broker": NODE}
    client = {"principal": "User:bob", "host": "10.0.0.7", "listener": "EXTERNAL", "client_id": "app", "api": "Fetch"}
    assert written.lines() == [
        {**time, "event": "signed-in", "principal": "User:alice", "host": "10.0.0.7", "listener": "EXTERNAL"}
        | {"mechanism": "SCRAM-SHA-256"},
        {**time, "event": "sign-in-failed", "host": "10.0.0.8", "listener": "EXTERNAL", "mechanism": "PLAIN"}
        | {"reason": "invalid credentials"},
        {**time, "event": "denied", **client, "operation": "READ", "resource_type": "TOPIC", "resource": "orders"},
        {**time, "event": "changed", **client, "resource_type": "TOPIC", "resource": "orders"}
        | {"error": "TOPIC_ALREADY_EXISTS", "details": {"partitions": "3"}},
    ]


async def test_allowed_operations_have_entries_only_if_the_settings_say_so() -> None:
    written = Written()
    written.log.allowed(Asked(), AclOperation.READ, ResourceType.TOPIC, "t")
    assert len(written.output.queue) == 0
    written.log.logs_allowed = True
    written.log.allowed(Asked(), AclOperation.READ, ResourceType.TOPIC, "t")
    await written.log.close()
    assert [line["event"] for line in written.lines()] == ["allowed"]


def test_no_text_of_a_client_ends_a_line_or_is_longer_than_the_bound() -> None:
    name = 'a"\n{"event":"signed-in"}\u2028' + "x" * 5000
    line = encode(AuditEntry(AuditEventType.DENIED, resource=name[:50]), 0, 1, NODE)
    assert b"\n" not in line and line.isascii() and json.loads(line)["resource"] == name[:50]

    class Kept:
        entries: list[AuditEntry] = []  # noqa: RUF012

        def put(self, entry: AuditEntry, now_ms: int) -> None:
            self.entries.append(entry)

        async def close(self) -> None:
            pass

    AuditLog([Kept()], clock=StillClock()).denied(Asked(client_id=name), AclOperation.READ, ResourceType.TOPIC, name)
    assert len(Kept.entries[0].resource) == len(Kept.entries[0].client_id) == TEXT_CHARS_MAX


def test_equal_entries_are_counted_and_those_that_do_not_fit_are_reported_as_dropped() -> None:
    queue = AuditQueue(entries_max=2)
    for number in range(4):
        for _ in range(3):
            queue.put(DENIED._replace(resource=f"t{number}"), now_ms=1000 + number)
    lines, events = queue.take(NODE, 100)
    found = [json.loads(line) for line in lines]
    assert [(line["event"], line.get("resource"), line["count"]) for line in found] == [
        ("dropped", None, 6),
        ("denied", "t0", 3),
        ("denied", "t1", 3),
    ]
    assert found[0]["time"] == "1970-01-01T00:00:01.002Z"
    assert (events, queue.dropped_total, queue.take(NODE, 100)) == (12, 6, ([], 0))


async def test_entries_wait_for_the_write_in_progress_and_nothing_waits_for_them() -> None:
    written = Written()
    for number in range(50):
        written.output.put(DENIED._replace(resource=str(number)), 0)
    assert written.executor.submitted == 1 and len(written.output.queue) == 49
    await written.log.close()
    assert written.executor.submitted == 2
    assert [line["resource"] for line in written.lines()] == [str(number) for number in range(50)]


async def test_the_file_is_rotated_by_size_and_so_many_are_kept() -> None:
    written = Written(bytes_max=300, files_max=3)
    for number in range(20):
        written.output.put(DENIED._replace(resource=f"{number:02}"), 0)
        await asyncio.sleep(2)
    await written.log.close()
    assert written.disk.names_in(PATH.parent) == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = [
        line["resource"]
        for name in ("audit.log.2", "audit.log.1", "audit.log")
        for line in written.lines(PATH.with_name(name))
    ]
    assert kept == [f"{number:02}" for number in range(20 - len(kept), 20)] and 6 <= len(kept) < 12
    assert all(written.disk.size_of(PATH.with_name(name)) <= 300 for name in written.disk.names_in(PATH.parent))


async def test_a_full_disk_drops_entries_and_the_next_written_entry_says_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = Written()
    written.output.put(DENIED, 0)
    await asyncio.sleep(2)
    written.disk.refuse(errno.ENOSPC, "append", "write", "open")
    for number in range(3):
        written.output.put(DENIED._replace(resource=f"lost {number}"), 0)
        await asyncio.sleep(2)
    written.disk.stop_refusing("append", "write", "open")
    written.output.put(DENIED._replace(resource="kept"), 0)
    await written.log.close()
    assert [(line["event"], line.get("resource"), line.get("count")) for line in written.lines()] == [
        ("denied", "t", None),
        ("dropped", None, 3),
        ("denied", "kept", None),
    ]
    assert caplog.text.count("cannot be written") == 1 and "is written again" not in caplog.text.split("cannot")[0]


async def test_a_file_that_was_moved_away_is_created_again(tmp_path: Path) -> None:
    written = Written()
    written.output.put(DENIED, 0)
    await until(lambda: not written.executor.is_running and len(written.output.queue) == 0)
    await asyncio.sleep(2)
    written.disk.rename(PATH, PATH.with_name("taken"))
    written.output.put(DENIED, 0)
    await written.log.close()
    assert len(written.lines()) == len(written.lines(PATH.with_name("taken"))) == 1
