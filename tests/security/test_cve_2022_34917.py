"""CVE-2022-34917: clients that had not signed in made the broker allocate memory by announcing large requests."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

import pytest

from tests.support.ottla_process import OttlaProcess
from tests.support.wire_client import encode

CONNECTIONS = 1000
MIB = 1 << 20
OWN_BUFFERS = 48 << 10
"""A connection with an unfinished request has a buffer of 32 KiB, and its objects, whatever the request's size."""

OPTIONS = ("-o", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT")


def rss_bytes(pid: int) -> int:
    """The memory of a process that is in use."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.parametrize(
    ("announced", "allowed"),
    [(100 * MIB, 0), (512 * 1024, CONNECTIONS * OWN_BUFFERS + 16 * MIB)],
    ids=["100 MiB", "512 KiB"],
)
def test_requests_that_are_announced_before_the_sign_in_take_no_memory(
    tmp_path: Path, announced: int, allowed: int
) -> None:
    server = OttlaProcess(tmp_path / "broker", options=OPTIONS).start()
    port = int(server.bootstrap.rpartition(":")[2])
    clients = []
    try:
        before = rss_bytes(server.pid)
        for _ in range(CONNECTIONS):
            client = socket.create_connection(("127.0.0.1", port), timeout=30)
            clients.append(client)
            with contextlib.suppress(ConnectionError):
                client.sendall(struct.pack(">i", announced) + bytes(40_000))
        probe = socket.create_connection(("127.0.0.1", port), timeout=30)
        clients.append(probe)
        frame = encode("api_versions", 0, 1, {})
        probe.sendall(struct.pack(">i", len(frame)) + frame)
        assert probe.recv(4)  # a client that asks is answered; and what came before has been read
        grown = rss_bytes(server.pid) - before
        assert grown <= before / 4 + allowed, f"{grown / MIB:.0f} MiB more than {before / MIB:.0f}"
    finally:
        for client in clients:
            client.close()
        server.stop()
