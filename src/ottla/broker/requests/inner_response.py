"""Takes the response to a request that is served as a part of another one: its bytes go to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.core.files import FileRegion
from ottla.net.connection import PendingResponse
from ottla.net.outbound import Part


class InnerResponse(PendingResponse):
    """The response to an inner request; `outer` is that to the request which the client has sent.

    `on_sent` gets the whole frame, with its length, and responds to the client. It is not called if the request has no
    response (acks=0): then `on_none` is.
    """

    __slots__ = ("_on_none", "_on_sent", "_outer")

    def __init__(
        self, outer: PendingResponse, on_sent: Callable[[bytes], None], on_none: Callable[[], None] | None = None
    ) -> None:
        super().__init__(outer.connection)
        self.correlation_id, self.throttle = outer.correlation_id, outer.throttle
        self._outer, self._on_sent, self._on_none = outer, on_sent, on_none

    def send(self, parts: Sequence[Part]) -> None:
        """Pass the response on."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        if self.on_completed is not None:
            on_completed, self.on_completed = self.on_completed, None
            on_completed(self)
        if parts:
            self._on_sent(b"".join(part.read() if isinstance(part, FileRegion) else part for part in parts))
        elif self._on_none is not None:
            self._on_none()

    def abandon(self) -> None:
        """Close the connection of the client."""
        self._on_none = None
        super().abandon()
        if self._outer.parts is None:
            self._outer.abandon()
