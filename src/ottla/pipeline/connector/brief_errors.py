"""Shortens errors that say enough by themselves: Spark prints the whole traceback before the message."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.pipeline.connector.offset_client import NoSuchTopic
from ottla.pipeline.connector.options import InvalidOption
from ottla.pipeline.connector.range_reader import DataLoss, TopicRecreated

P = ParamSpec("P")
T = TypeVar("T")
_EXPECTED = (CannotConnect, DataLoss, InvalidOption, KafkaError, NoSuchTopic, TopicRecreated)


def brief(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method that Spark calls, so that expected errors come without the frames in which they were raised."""

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(*arguments, **named)
        except _EXPECTED as error:
            raise error.with_traceback(None) from None

    return call
