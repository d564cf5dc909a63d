"""Declares what can be plugged into the stages of the driver: nothing is, until it is configured.

A request passes **admit -> decode -> authorize -> route -> handle -> encode -> account**, each once (driver.py). A
stage whose object is None costs one comparison.

| Stage | Object | What it may do |
| --- | --- | --- |
| admit | `Admission` | refuse, delay, change or answer a request, count what begins; sign_in.py comes before it |
| authorize | `Authorizer` (authorization.py) | deny what an API requires of the client, as its handler declares |
| encode, account | `Accounting` | have the client wait (`throttle_time_ms`), measure and log what a request took |
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ottla.broker.requests.request import Request

T = TypeVar("T")


class Admission(Protocol):
    """Decides whether, when and how a request begins."""

    def admit(self, request: Request, frame: memoryview) -> Coroutine[Any, Any, bytearray | None] | None:
        """Return None to go on. Raises MalformedRequest: the connection is closed.

        Or return a coroutine that takes the request over. It returns the frame with which to go on, which may be
        another than that of the client, or None if there is nothing left to do: then it completes `request.pending`. To
        get the response of what goes on, it puts an `InnerResponse` in the place of `request.pending`.

        The header has been read; `request.api` is None if the API is not served. The frame is valid until this returns.
        """
        ...


class Accounting(Protocol):
    """Measures requests, and limits their rate."""

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Note that a request has arrived: called once for each whose header was read."""
        ...

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        """Return how long the client has to wait after the response: 0 without a quota.

        Called before the response is encoded. `record_bytes` is what a Fetch is about to send, and `NO_FETCH` for any
        other API: if the client of a Fetch has to wait, the response is empty.
        """
        ...

    def pause(self, request: Request) -> None:
        """Note that the loop turns to others: what is left to do for the request waits, or is done."""
        ...

    def measure(self, request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs `work`, and may measure it."""
        ...

    def forwarded(self, request: Request, answer: bytes) -> None:
        """Note the controller's response to a forwarded request: it may have a throttle time."""
        ...

    def account(self, request: Request) -> None:
        """Note that the request is completed. `request.pending.parts` is its response: empty if there is none.

        Called once for every request: served, refused and malformed ones, and those whose client went away.
        """
        ...
