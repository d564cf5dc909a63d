"""Decides how one connection signs in: which request may come next, when it is signed in, and until when.

    INITIAL -> (ApiVersions) -> HANDSHAKE -> SaslHandshake -> AUTHENTICATE -> SaslAuthenticate... -> COMPLETE | FAILED

SaslHandshake may also be the first request. Anything else ends the connection. After SaslHandshake v0 the tokens come
without request headers (KIP-43); from v1 on SaslAuthenticate carries them (KIP-152). Where the session has an end, a
second handshake renews it, by the same mechanism and for the same principal (KIP-368); without one, SaslHandshake is
answered ILLEGAL_SASL_STATE. The rules are those of Kafka's SaslServerAuthenticator and of KafkaChannel. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from ottla.core.errors import ErrorCode
from ottla.net.identity import USER, ConnectionIdentity
from ottla.security.sasl.mechanism import AuthenticationFailed, Exchange
from ottla.wire.apis import ApiKey

REAUTHENTICATION_S_MIN: Final = 1.0
"""A client may not begin to renew its session more often than that; it is answered as without a session's end."""

_FIRST_WITH_HEADERS: Final = 1  # the version of SaslHandshake


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSasl:
    """The mechanisms of one listener, and how they are configured."""

    exchanges: Mapping[str, Callable[[], Exchange]]  # the enabled mechanisms, in their order
    session_ms_max: Mapping[str, int]  # by mechanism: connections.max.reauth.ms; 0 for sessions without an end
    failure_delay_s: float


class State(Enum):
    """Lists where a sign-in stands."""

    INITIAL = auto()  # ApiVersions or SaslHandshake comes
    HANDSHAKE = auto()  # SaslHandshake comes
    AUTHENTICATE = auto()  # a token comes
    COMPLETE = auto()
    OTHER_MECHANISM = auto()  # a session may not be renewed so: whatever comes next ends the connection
    EXPIRED = auto()  # the session is over: only a handshake may come
    FAILED = auto()


class Verdict(Enum):
    """Lists what may be done with the next request."""

    SERVE = auto()
    CLOSE = auto()  # now, without a response
    REFUSE = auto()  # with ILLEGAL_SASL_STATE, as a failed sign-in: later, and then the connection is closed
    CLOSE_LATER = auto()  # as a failed sign-in, without a response


class Step(NamedTuple):
    """The outcome of one token."""

    token: bytes  # for the client
    session_ms: int = 0  # the lifetime of the session; 0 while the exchange goes on, and for one without an end


class SignIn:
    """The sign-in of one connection, and its session afterwards."""

    __slots__ = (
        "_exchange",
        "_last_renewal",
        "_renewed",
        "error",
        "has_headers",
        "identity",
        "listener",
        "mechanism",
        "session_ends",
        "state",
    )

    def __init__(self, listener: ListenerSasl) -> None:
        self.listener = listener
        self.state = State.INITIAL
        self.mechanism = ""
        self.has_headers = True  # tokens come in SaslAuthenticate requests
        self.identity: ConnectionIdentity | None = None  # once the client has signed in
        self.session_ends: float | None = None  # by the monotonic clock
        self.error: AuthenticationFailed | None = None
        self._exchange: Exchange | None = None
        self._renewed: tuple[str, ConnectionIdentity] | None = None  # mechanism and principal of the session
        self._last_renewal: float | None = None

    @property
    def takes_raw_tokens(self) -> bool:
        """Return whether the next frame is a token without a request header."""
        return self.state is State.AUTHENTICATE and not self.has_headers

    def verdict(self, key: int) -> Verdict:
        """Return the verdict on a request of this API."""
        match self.state:
            case State.INITIAL if key == ApiKey.API_VERSIONS:
                return Verdict.SERVE
            case State.INITIAL | State.HANDSHAKE | State.EXPIRED:
                return Verdict.SERVE if key == ApiKey.SASL_HANDSHAKE else Verdict.CLOSE
            case State.AUTHENTICATE:
                return Verdict.SERVE if key == ApiKey.SASL_AUTHENTICATE else Verdict.REFUSE
            case State.OTHER_MECHANISM:
                return Verdict.CLOSE_LATER
            case State.COMPLETE:
                return Verdict.SERVE
            case _:
                return Verdict.CLOSE

    def versions_sent(self) -> None:
        """Note that the client has the list of APIs: it may not ask again before it has signed in."""
        if self.state is State.INITIAL:
            self.state = State.HANDSHAKE

    def handshake(self, mechanism: str, version: int, now: float) -> ErrorCode:
        """Begin the exchange of a mechanism, or another one where there is a session; return the error."""
        if self.state in (State.COMPLETE, State.EXPIRED):
            if self._last_renewal is not None and now - self._last_renewal < REAUTHENTICATION_S_MIN:
                return ErrorCode.ILLEGAL_SASL_STATE
            assert self.identity is not None, "there is a session"
            self._last_renewal = now
            self._renewed = self.mechanism, self.identity
        begin = self.listener.exchanges.get(mechanism)
        if begin is None:
            self._fail(AuthenticationFailed(f"unsupported SASL mechanism {mechanism[:40]!r}"))
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self.has_headers = version >= _FIRST_WITH_HEADERS
        if self._renewed is not None and self._renewed[0] != mechanism:
            self.error = AuthenticationFailed(f"{mechanism} cannot renew a session of {self._renewed[0]}")
            self.state = State.OTHER_MECHANISM
        else:
            self.mechanism, self._exchange, self.state = mechanism, begin(), State.AUTHENTICATE
        return ErrorCode.NONE

    def evaluate(self, token: bytes, now: float, wall_ms: int) -> Step:
        """Answer a token. Raises AuthenticationFailed, with an answer."""
        exchange = self._exchange
        assert exchange is not None, "a handshake comes first"
        try:
            answer = exchange.evaluate(token)
            principal = exchange.principal
            if principal is None:
                return Step(answer)
            identity = ConnectionIdentity(USER, principal.name, principal.groups, principal.is_token)
            self._check_same(identity)
        except AuthenticationFailed as error:
            if not error.answer:
                kind = "authentication" if self._renewed is None else "re-authentication"
                error.answer = (
                    f"Authentication failed during {kind} due to invalid credentials with SASL mechanism "
                    f"{self.mechanism}"
                )
            self._fail(error)
            raise
        session_ms = self._session_ms(principal.expires_at_ms, wall_ms)
        self.session_ends = None if session_ms is None else now + session_ms / 1000
        self.identity, self.state, self._exchange = identity, State.COMPLETE, None
        return Step(answer, session_ms or 0)

    def end(self) -> None:
        """Note that it has failed: whatever comes next ends the connection."""
        self.state, self._exchange = State.FAILED, None

    def expire(self) -> None:
        """Note that the session is over, unless it is just being renewed."""
        if self.state is State.COMPLETE:
            self.state = State.EXPIRED

    def _check_same(self, identity: ConnectionIdentity) -> None:
        if self._renewed is None or self._renewed[1][:2] == identity[:2]:
            return
        (_, old), new = self._renewed, identity
        raise AuthenticationFailed(
            "another principal",
            answer=f"Cannot change principals during re-authentication from {old.principal_type}.{old.principal_name}: "
            f"{new.principal_type}.{new.principal_name}",
            user=new.principal_name,
        )

    def _session_ms(self, expires_at_ms: int | None, wall_ms: int) -> int | None:
        """Return how long the session lives: as long as its credential and the listener's setting let it."""
        limit = self.listener.session_ms_max.get(self.mechanism, 0)
        lifetimes = [] if expires_at_ms is None else [expires_at_ms - wall_ms]
        if limit > 0:
            lifetimes.append(limit)
        return max(0, min(lifetimes)) if lifetimes else None

    def _fail(self, error: AuthenticationFailed) -> None:
        # another one: this one's traceback refers to the connection, which refers to this sign-in
        self.error = AuthenticationFailed(str(error), answer=error.answer, user=error.user)
        self.end()
