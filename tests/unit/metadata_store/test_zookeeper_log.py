"""The log of a broker names ZooKeeper when it goes away and when it is back, and how long it was away."""

from __future__ import annotations

import asyncio

import pytest

from ottla.metadata_store.store import SessionState, SessionStatus
from ottla.metadata_store.zookeeper import ZooKeeperStore
from ottla.metadata_store.zookeeper_connect import parse_connect

pytestmark = pytest.mark.simulated_time
CONNECTED, SUSPENDED, LOST = SessionStatus.CONNECTED, SessionStatus.SUSPENDED, SessionStatus.LOST


async def logged(caplog: pytest.LogCaptureFixture, *states: SessionState) -> list[str]:
    """Return what is logged when the session gets into each state two seconds after the one before."""
    caplog.set_level("INFO")
    store = ZooKeeperStore(parse_connect("zk-1:2181/ottla"), session_timeout_s=6, connection_timeout_s=1)
    for state in states:
        store._enter(state)
        await asyncio.sleep(2)
    return caplog.messages


async def test_a_session_that_goes_on_is_logged_with_the_time_without_it(caplog: pytest.LogCaptureFixture) -> None:
    states = SessionState(1, CONNECTED), SessionState(1, SUSPENDED), SessionState(1, CONNECTED)
    assert await logged(caplog, *states) == [
        "the connection to ZooKeeper at zk-1:2181/ottla is lost",
        "the session with ZooKeeper at zk-1:2181/ottla goes on, after 2.0 s",
    ]


async def test_another_session_after_a_lost_one_is_logged_with_the_time_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = SessionState(1, CONNECTED), SessionState(1, SUSPENDED), SessionState(1, LOST), SessionState(2, CONNECTED)
    assert await logged(caplog, *states) == [
        "the connection to ZooKeeper at zk-1:2181/ottla is lost",
        "the session with ZooKeeper at zk-1:2181/ottla is lost, 2.0 s after its connection; opening another one",
        "another session with ZooKeeper at zk-1:2181/ottla was opened, 4.0 s after the connection was lost",
    ]
