"""A connection to ZooKeeper can be given up at any time: nothing of it holds the process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from ottla.metadata_store.store import SessionStatus
from ottla.metadata_store.zookeeper_connection import ZooKeeperConnection, ZooKeeperUnreachable


def ignored(_status: SessionStatus) -> None:
    """No session is opened."""


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.timeout(60)
def test_an_open_that_is_cancelled_leaves_no_thread_that_the_process_waits_for() -> None:
    async def scenario(hosts: str) -> None:
        connection = ZooKeeperConnection(hosts, chroot="", session_timeout_s=1, on_status=ignored)
        opening = asyncio.ensure_future(connection.open(300))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await connection.close()

    threads_before = set(threading.enumerate())
    with silent_server() as hosts:
        asyncio.run(scenario(hosts))
    assert all(thread.daemon for thread in set(threading.enumerate()) - threads_before)


@pytest.mark.timeout(60)
def test_a_server_that_does_not_answer_is_reported_in_time() -> None:
    async def scenario(hosts: str) -> None:
        connection = ZooKeeperConnection(hosts, chroot="", session_timeout_s=1, on_status=ignored)
        with pytest.raises(ZooKeeperUnreachable, match="no ZooKeeper server"):
            await connection.open(0.2)
        await connection.close()

    with silent_server() as hosts:
        asyncio.run(scenario(hosts))
