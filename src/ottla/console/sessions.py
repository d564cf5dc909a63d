"""Keeps the sessions of browsers in memory: who has signed in, and the token that its forms must carry."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from typing import Final

from ottla.console.workspace import Workspace
from ottla.core.clock import Clock, SystemClock
from ottla.core.runtime import random_bytes

COOKIE: Final = "ottla_console"
LIFETIME_S: Final = 8 * 3600.0
IDLE_S: Final = 3600.0
SESSIONS_MAX: Final = 500
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    """Return a random text that cannot be guessed."""
    return base64.urlsafe_b64encode(random_bytes(_TOKEN_BYTES)).decode().rstrip("=")


@dataclass(slots=True)
class Session:
    """A browser. `user` is empty before it has signed in; `workspace` is its own if it acts with its own rights."""

    token: str
    began: float
    used: float
    csrf: str = field(default_factory=new_token)
    user: str = ""
    workspace: Workspace | None = None
    notice: str = ""
    """A sentence for the next page."""
    pending: dict[str, str] = field(default_factory=dict)
    """The values that the answer of an OIDC provider must match."""

    def is_csrf(self, text: str) -> bool:
        """Check the token of a form."""
        return hmac.compare_digest(self.csrf.encode(), text.encode())

    def take_notice(self) -> str:
        """Return the sentence for this page, once."""
        notice, self.notice = self.notice, ""
        return notice


class Sessions:
    """The sessions by the value of their cookie; those that are over, and the oldest of too many, are ended."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def get(self, token: str | None) -> Session | None:
        """Return the session of a cookie, if it is not over."""
        session = self._sessions.get(token or "")
        if session is None:
            return None
        now = self._clock.monotonic()
        if now - session.began > LIFETIME_S or now - session.used > IDLE_S:
            await self.end(session)
            return None
        session.used = now
        return session

    async def begin(self) -> Session:
        """Return a new session, with a token of its own: signing in does not keep the one of before."""
        now = self._clock.monotonic()
        over = [known for known in self._sessions.values() if now - known.used > IDLE_S]
        if len(self._sessions) - len(over) >= SESSIONS_MAX:
            over.append(min(self._sessions.values(), key=lambda known: (bool(known.user), known.used)))
        for session in over:
            await self.end(session)
        session = Session(new_token(), now, now)
        self._sessions[session.token] = session
        return session

    async def end(self, session: Session) -> None:
        """End a session and close its connections."""
        self._sessions.pop(session.token, None)
        if session.workspace is not None:
            await session.workspace.close()

    async def close(self) -> None:
        """End all."""
        for session in list(self._sessions.values()):
            await self.end(session)
