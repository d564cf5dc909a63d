"""Holds the requests that wait for answers of a pure state machine, which names them by tickets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")


class WaitingRequests(Generic[AnswerT]):
    """Holds the requests of one machine. Its outputs call `answer`."""

    def __init__(self) -> None:
        self._tickets = count()
        self._answers: dict[int, asyncio.Future[AnswerT]] = {}

    async def ask(self, feed: Callable[[int], None]) -> AnswerT:
        """Feed the machine a request with a new ticket, and wait for the answer, which a later event may produce."""
        ticket = next(self._tickets)
        answer: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        try:
            feed(ticket)
            return await answer
        finally:
            self._answers.pop(ticket, None)

    def answer(self, ticket: int, answer: AnswerT) -> None:
        """Answer the request with this ticket, unless it was cancelled or the event had none."""
        waiting = self._answers.pop(ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def refuse(self, reason: Callable[[], BaseException]) -> None:
        """Fail all waiting requests, each with an exception of its own."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(reason())
