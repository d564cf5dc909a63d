"""Does what administrators' requests have in common: their timeout, topic names, error fields."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.core.errors import ErrorCode, InvalidTopic, KafkaError, RequestTimedOut
from ottla.core.ids import why_illegal_topic

T = TypeVar("T")


async def with_timeout(timeout_ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Return the result or raise `RequestTimedOut`; with a timeout of 0 the work is not started, as in Kafka."""
    if timeout_ms <= 0:
        work.close()
        raise RequestTimedOut
    try:
        return await asyncio.wait_for(work, timeout_ms / 1000)
    except TimeoutError:
        raise RequestTimedOut from None


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopic` for an illegal topic name."""
    why = why_illegal_topic(name)
    if why is not None:
        raise InvalidTopic(f"Topic name is invalid: {why}")


def error_fields(error: KafkaError | None) -> tuple[int, str | None]:
    """Return the error code and message of an outcome, as most responses have them."""
    return (ErrorCode.NONE, None) if error is None else (error.code, error.message)
