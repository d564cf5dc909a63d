"""Implements the metadata store on Apache ZooKeeper, as one session after another.

Reads are answered from the session's copy of the tree (`zookeeper_session.py`), which has this broker's own commits
when `commit` returns, and the others' commits a little later, whole and in order. A commit whose answer was lost is
looked for once the session is connected again, and sent again if it was not made; it is unknown only if the session is
over.

All writers of the tree should be Ottla's: the changes of other programs are seen when a commit conflicts with them, or
at the next full load. Requests of Kafka's older tools (`znodes.ADMIN_REQUESTS`) are watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ottla.metadata_store.store import (
    Node,
    NodeChange,
    Op,
    SessionLost,
    SessionState,
    SessionStates,
    SessionStatus,
    Watch,
    is_within,
)
from ottla.metadata_store.zookeeper_connect import ZooKeeperConnect
from ottla.metadata_store.zookeeper_connection import ZooKeeperConnection, ZooKeeperSecurity, ZooKeeperUnreachable
from ottla.metadata_store.zookeeper_session import Changes, ZooKeeperSession

logger = logging.getLogger(__name__)


class ZooKeeperStore(SessionStates):
    """Implements the `MetadataStore` port. `renew` opens the first session, and another one after a lost one."""

    def __init__(
        self,
        connect: ZooKeeperConnect,
        *,
        session_timeout_s: float,
        connection_timeout_s: float,
        security: ZooKeeperSecurity | None = None,
    ) -> None:
        super().__init__(SessionState(0, SessionStatus.LOST))
        self._connect, self._security = connect, security
        self._session_timeout_s, self._connection_timeout_s = session_timeout_s, connection_timeout_s
        self._session: ZooKeeperSession | None = None
        self._watches: dict[Watch, str] = {}  # and their prefixes
        self._is_closed = False
        self._disconnected_s = 0.0  # the time at which the connection of the session in use was lost

    async def renew(self) -> None:
        """Open another session in place of a lost one; keep trying until ZooKeeper answers.

        The very first one must be possible within the connection timeout. Raises ZooKeeperUnreachable then, and
        SessionLost after `close`.
        """
        if self._state.status is not SessionStatus.LOST:
            return
        while not self._is_closed:
            try:
                await self._open(self._state.ordinal + 1)
            except ZooKeeperUnreachable:
                if self._state.ordinal == 0:
                    raise
            else:
                return
        raise SessionLost("/")

    async def _open(self, ordinal: int) -> None:
        """Open a session in place of the last one. Raises ZooKeeperUnreachable."""
        if self._session is not None:
            await self._session.close()
        session = self._session = ZooKeeperSession(
            lambda on_status: ZooKeeperConnection(
                self._connect.hosts,
                chroot=self._connect.chroot,
                session_timeout_s=self._session_timeout_s,
                on_status=on_status,
                security=self._security,
            ),
            on_changes=self._publish,
            on_status=lambda status: self._follow(session, SessionState(ordinal, status)),
        )
        try:
            await session.open(self._connection_timeout_s)
        except BaseException:
            await session.close()
            raise
        if session.status is SessionStatus.LOST:
            raise ZooKeeperUnreachable("the session ended while it was opened")
        self._enter(SessionState(ordinal, session.status))

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        return self._alive(path).nodes.get(path)

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        return frozenset(self._alive(path).child_names.get(path, ()))

    async def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below `prefix`."""
        return self._alive(prefix).list_nodes(prefix)

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none."""
        return await self._alive(ops[0].path if ops else "/").commit(ops)

    def watch(self, prefix: str) -> Watch:
        """Watch all nodes at or below `prefix`."""
        session = self._alive(prefix)
        watch = Watch()
        number = session.last_commit
        nodes = session.list_nodes(prefix)
        watch.publish((NodeChange(number, path, node) for path, node in nodes.items()), is_complete=True)
        self._watches = {each: of for each, of in self._watches.items() if not each.is_over}
        self._watches[watch] = prefix
        return watch

    async def sync(self) -> None:
        """Return once reads and watches have every commit that was made before the call."""
        await self._alive("/").sync()

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    def _alive(self, path: str) -> ZooKeeperSession:
        if self._session is None or self._state.status is SessionStatus.LOST:
            raise SessionLost(path)
        return self._session

    def _publish(self, number: int, changes: Changes) -> None:
        for watch, prefix in self._watches.items():
            watch.publish(NodeChange(number, path, node) for path, node in changes.items() if is_within(path, prefix))

    def _follow(self, session: ZooKeeperSession, state: SessionState) -> None:
        """Follow the status of the session in use, not of one that is being opened."""
        if session is self._session and state.ordinal == self._state.ordinal:
            self._enter(state)

    def _enter(self, state: SessionState) -> None:
        if self._state == state:
            return
        self._log(self._state, state)
        if state.status is SessionStatus.LOST:
            for watch in self._watches:
                watch.end()
            self._watches = {}
        super()._enter(state)

    def _log(self, old: SessionState, new: SessionState) -> None:
        """Log what became of the session, with the name of ZooKeeper: its operator reads this. Not a start or stop."""
        if self._is_closed or (old.ordinal == 0 and new.status is SessionStatus.CONNECTED):
            return
        now = asyncio.get_running_loop().time()
        if old.status is SessionStatus.CONNECTED:
            self._disconnected_s = now
        away_s = now - self._disconnected_s
        match new.status:
            case SessionStatus.SUSPENDED:
                logger.warning("the connection to ZooKeeper at %s is lost", self._connect)
            case SessionStatus.LOST:
                logger.warning(
                    "the session with ZooKeeper at %s is lost, %.1f s after its connection; opening another one",
                    self._connect,
                    away_s,
                )
            case SessionStatus.CONNECTED if new.ordinal == old.ordinal:
                logger.info("the session with ZooKeeper at %s goes on, after %.1f s", self._connect, away_s)
            case SessionStatus.CONNECTED:
                logger.info(
                    "another session with ZooKeeper at %s was opened, %.1f s after the connection was lost",
                    self._connect,
                    away_s,
                )


__all__ = ["ZooKeeperStore", "ZooKeeperUnreachable"]
