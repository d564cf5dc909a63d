"""Keeps the sign-ins of this broker's connections by SASL, and the sessions that have an end.

The dispatch of a connection (net/connection.py) is `before` while its client signs in or its session is over, and
`after` once it is signed in: requests/sign_in.py and the driver. The handlers of SaslHandshake and SaslAuthenticate
call the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from ottla.core.clock import Clock
from ottla.metadata_store.snapshot_age import SnapshotAge
from ottla.net.connection import Dispatch, ServerConnection
from ottla.security.sasl.credentials import HASHES
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.sign_in import ListenerSasl, SignIn, State, Step


class SignInLog(Protocol):
    """Records each sign-in (security/audit_log.py)."""

    def signed_in(self, *, principal: str, host: str, listener: str, mechanism: str) -> None: ...  # noqa: D102

    def sign_in_failed(  # noqa: D102
        self, *, principal: str, host: str, listener: str, mechanism: str, reason: str
    ) -> None: ...


class SignIns:
    """The sign-ins of all listeners with SASL."""

    def __init__(
        self,
        listeners: Mapping[str, ListenerSasl],
        clock: Clock,
        *,
        audit_log: SignInLog | None = None,
        snapshot_age: SnapshotAge | None = None,
    ) -> None:
        self._listeners, self._clock, self._audit_log = listeners, clock, audit_log
        self._snapshot_age = snapshot_age  # of the credentials of SCRAM
        self.successes: Counter[tuple[str, str]] = Counter()  # by listener and mechanism
        self.failures: Counter[tuple[str, str]] = Counter()
        self._expiries: dict[ServerConnection, asyncio.TimerHandle] = {}
        self._before: Dispatch | None = None
        self._after: Dispatch | None = None

    def dispatch_by(self, *, before: Dispatch, after: Dispatch) -> None:
        """Have these take the requests of connections, before and after their sign-in."""
        self._before, self._after = before, after

    def of(self, connection: ServerConnection) -> SignIn | None:
        """Return the sign-in of a connection; None if there is none to do."""
        sign_in = connection.authentication
        if isinstance(sign_in, SignIn):
            return sign_in
        if connection.is_signed_in:
            return None
        sign_in = SignIn(self._listeners[connection.listener])
        connection.authentication = sign_in
        return sign_in

    def must_wait(self, sign_in: SignIn) -> bool:
        """Return whether the credential that a client signs in by may have changed: the snapshot is too old."""
        age = self._snapshot_age
        return age is not None and sign_in.mechanism in HASHES and age.is_too_old()

    def take_token(self, connection: ServerConnection, sign_in: SignIn, token: bytes) -> Step:
        """Answer a token; the connection is signed in with the last one. Raises AuthenticationFailed."""
        now = self._clock.monotonic()
        try:
            step = sign_in.evaluate(token, now, self._clock.wall_ms())
        except AuthenticationFailed as error:
            self.note_failure(connection, sign_in, error)
            raise
        if sign_in.state is State.COMPLETE:
            self._signed_in(connection, sign_in, now)
        return step

    def begin_again(self, connection: ServerConnection) -> None:
        """Take the requests of a connection again: its client renews its session."""
        assert self._before is not None, "`dispatch_by` comes first"
        connection.dispatch = self._before

    def note_failure(self, connection: ServerConnection, sign_in: SignIn, error: AuthenticationFailed) -> None:
        """Log that a sign-in failed, or count it."""
        self.failures[connection.listener, sign_in.mechanism] += 1
        connection.log_malformed("failed sign-in", f"its sign-in failed: {error}")
        if self._audit_log is not None:
            self._audit_log.sign_in_failed(
                principal=f"User:{error.user}" if error.user else "",
                host=connection.host,
                listener=connection.listener,
                mechanism=sign_in.mechanism,
                reason=str(error),
            )

    def end(self, connection: ServerConnection, sign_in: SignIn, respond: Callable[[], None]) -> None:
        """Respond to a failed sign-in after the delay, and close the connection after another one.

        A client that receives the response together with the end of the stream may see the latter only: kafka-python
        then reports a lost connection, not what was wrong.
        """
        sign_in.end()
        loop, delay_s = asyncio.get_running_loop(), sign_in.listener.failure_delay_s

        def end() -> None:
            respond()
            loop.call_later(delay_s, connection.close_when_sent)

        loop.call_later(delay_s, end)

    def _signed_in(self, connection: ServerConnection, sign_in: SignIn, now: float) -> None:
        assert sign_in.identity is not None, "the sign-in is complete"
        assert self._after is not None, "`dispatch_by` comes first"
        connection.sign_in(sign_in.identity)
        connection.dispatch = self._after
        self._forget(connection)
        self.successes[connection.listener, sign_in.mechanism] += 1
        if sign_in.session_ends is None:
            connection.authentication = None
        else:
            loop = asyncio.get_running_loop()
            self._expiries[connection] = loop.call_later(sign_in.session_ends - now, self._expire, connection, sign_in)
            connection.call_when_lost("end of the session", lambda: self._forget(connection))
        if self._audit_log is not None:
            self._audit_log.signed_in(
                principal=f"{sign_in.identity.principal_type}:{sign_in.identity.principal_name}",
                host=connection.host,
                listener=connection.listener,
                mechanism=sign_in.mechanism,
            )

    def _expire(self, connection: ServerConnection, sign_in: SignIn) -> None:
        """Let the next request end the connection, unless it renews the session."""
        self._expiries.pop(connection, None)
        sign_in.expire()
        self.begin_again(connection)

    def _forget(self, connection: ServerConnection) -> None:
        if (timer := self._expiries.pop(connection, None)) is not None:
            timer.cancel()
