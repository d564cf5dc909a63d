"""Selects the topics and partitions that a source reads: by names, by a pattern, or by single partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.core.ids import TopicPartition

_WAYS = ("assign", "subscribe", "subscribePattern")


class OptionLookup(Protocol):
    """Port: looks up options by name."""

    def text(self, name: str) -> str | None:
        """Return the value of an option, if it is given."""


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """One of three; the others are empty."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def matches_topic(self, topic: str, *, internal: bool) -> bool:
        """Return whether the pattern matches the topic's whole name; it never matches the brokers' own topics."""
        return self.pattern is not None and not internal and re.fullmatch(self.pattern, topic) is not None

    def includes_partition(self, tp: TopicPartition) -> bool:
        """Return whether a partition of a subscribed topic is subscribed: all are, unless `assign` lists some."""
        return not self.partitions or tp.partition in self.partitions.get(tp.topic, ())

    @property
    def required_topics(self) -> tuple[str, ...]:
        """The topics that must exist."""
        return self.topics or tuple(self.partitions)


def subscription_from(given: OptionLookup) -> TopicSubscription:
    """Read exactly one of subscribe, subscribePattern and assign. Raises ValueError naming the option."""
    found = [way for way in _WAYS if given.text(way) is not None]
    if not found:
        raise ValueError("subscribe: say what to read by one of subscribe, subscribePattern and assign")
    if len(found) > 1:
        raise ValueError(f"{found[1]}: {found[0]} is given too; one of them says what to read")
    text = given.text(found[0]) or ""
    if found == ["subscribe"]:
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ValueError("subscribe: it names no topic")
        return TopicSubscription(topics=topics)
    if found == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"subscribePattern: {text!r} is no regular expression: {error}") from None
        if not text.strip():
            raise ValueError("subscribePattern: it is empty")
        return TopicSubscription(pattern=text)
    return TopicSubscription(partitions=_assigned(text))


def partition_numbers(name: str, text: str, value: str) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 5}}` as Spark writes offsets and times. Raises ValueError naming the option."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(name, text).items():
        if not isinstance(numbers, dict):
            raise ValueError(f'{name}: write {{"topic": {{"0": {value}}}}}')  # noqa: TRY004 - it is an option's value
        for partition, number in numbers.items():
            if not partition.isdecimal() or isinstance(number, bool) or not isinstance(number, int | str):
                raise ValueError(f'{name}: write {{"topic": {{"0": {value}}}}}')
            try:
                found[TopicPartition(topic, int(partition))] = int(number)
            except ValueError:
                raise ValueError(f"{name}: {number!r} is no number") from None
    if not found:
        raise ValueError(f"{name}: it names no partition")
    return found


def check_covers(name: str, given: Iterable[TopicPartition], wanted: Iterable[TopicPartition]) -> None:
    """Raise ValueError unless an option with a value per partition names all that are read, and no others."""
    have, need = set(given), set(wanted)
    if have != need:
        missing = ", ".join(sorted(map(str, need - have)))
        surplus = ", ".join(sorted(map(str, have - need)))
        parts = [f"{missing} is missing"] * bool(missing) + [f"{surplus} is not read"] * bool(surplus)
        raise ValueError(f"{name}: it must name all partitions that are read: {'; '.join(parts)}")


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _json_object("assign", text).items():
        if not isinstance(numbers, list) or not numbers or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError('assign: write {"topic": [0, 1]}')
        found[topic] = tuple(sorted(set(numbers)))
    if not found:
        raise ValueError("assign: it names no partition")
    return found


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: {text!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: {text!r} is no JSON object")  # noqa: TRY004 - it is an option's value
    return found
