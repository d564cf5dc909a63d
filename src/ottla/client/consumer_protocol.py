"""Encodes and decodes the subscriptions and assignments of classic consumer groups, and implements the range assignor.

The bytes are Kafka's `ConsumerProtocol`: version 0 is written, every version is read, because newer ones only add
fields at the end. The range assignor gives the same result as Kafka's, so clients of other languages can be members of
the same group. No I/O.

Member metadata is opaque to the coordinator, which Connect, Streams and schema registries share. It decodes only that
of groups of type `consumer`, to find offsets without a subscriber (KIP-211) and static members that return with the
same topics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.core.ids import TopicPartition

RANGE = "range"
CONSUMER = "consumer"
"""The protocol type of Kafka's consumers."""

_OWNED_PARTITIONS_SINCE, _RACK_SINCE = 1, 3
"""Versions of the subscription that added fields."""

_TOPICS_MAX = 100_000
"""Bound on the topics of one subscription."""


class MalformedConsumerProtocol(ValueError):
    """Reports bytes that are no subscription or assignment, as some clients of type `consumer` send."""


def write_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member.

    >>> read_subscription(write_subscription(["b", "a"]))
    ['a', 'b']
    """
    names = sorted(topics)
    return struct.pack(">hi", 0, len(names)) + b"".join(_text(name) for name in names) + struct.pack(">i", -1)


def read_subscription(data: bytes) -> list[str]:
    """Decode the topics of a subscription. Raises `MalformedConsumerProtocol`."""
    try:
        version, count = struct.unpack_from(">hi", data)
        if version < 0 or not 0 <= count <= _TOPICS_MAX:
            raise MalformedConsumerProtocol(f"a subscription of version {version} to {count} topics is invalid")
        at, names = 6, []
        for _ in range(count):
            name, at = _read_text(data, at)
            names.append(name)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedConsumerProtocol(f"a member's subscription cannot be read: {error}") from None
    return names


class Subscription(NamedTuple):
    """Holds what a member sends in JoinGroup."""

    version: int
    topics: list[str]
    owned: list[TopicPartition]
    rack_id: str | None


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription with the fields that version 1 (owned partitions) and 3 (rack) added.

    Raises `MalformedConsumerProtocol`.

    >>> decode_subscription(write_subscription(["a"]))
    Subscription(version=0, topics=['a'], owned=[], rack_id=None)
    """
    topics = read_subscription(data)
    owned: list[TopicPartition] = []
    rack_id = None
    try:
        (version,) = struct.unpack_from(">h", data)
        at = 6 + sum(2 + len(name.encode()) for name in topics)
        (user_data_bytes,) = struct.unpack_from(">i", data, at)
        at += 4 + max(user_data_bytes, 0)
        if version >= _OWNED_PARTITIONS_SINCE:
            owned, at = _read_partitions(data, at)
        if version >= _RACK_SINCE:
            at += 4  # the generation
            (size,) = struct.unpack_from(">h", data, at)
            rack_id = _read_text(data, at)[0] if size >= 0 else None
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedConsumerProtocol(f"a member's subscription cannot be read: {error}") from None
    return Subscription(version, topics, owned, rack_id)


def read_subscriptions(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Decode the union of the topics of all members, or None if one of them cannot be decoded."""
    try:
        return frozenset[str]().union(*(read_subscription(metadata) for metadata in subscriptions))
    except MalformedConsumerProtocol:
        return None


def write_assignment(partitions: Iterable[TopicPartition], version: int = 0) -> bytes:
    """Encode the assignment of a member; all versions have the same fields."""
    grouped: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        grouped.setdefault(tp.topic, []).append(tp.partition)
    parts = [struct.pack(">hi", version, len(grouped))]
    for topic, numbers in grouped.items():
        parts += (_text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + struct.pack(">i", -1)


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Decode the partitions of an assignment; no bytes are no partitions. Raises `MalformedConsumerProtocol`.

    >>> read_assignment(write_assignment([TopicPartition("t", 1)]))
    [TopicPartition(topic='t', partition=1)]
    """
    if not data:
        return []
    try:
        return _read_partitions(data, 2)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedConsumerProtocol(f"a member's assignment cannot be read: {error}") from None


def assignment_has_user_data(data: bytes) -> bool:
    """Return whether a custom assignor added data of its own to an assignment. Raises `MalformedConsumerProtocol`."""
    if not data:
        return False
    try:
        at = _read_partitions(data, 2)[1]
        (size,) = struct.unpack_from(">i", data, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedConsumerProtocol(f"a member's assignment cannot be read: {error}") from None
    return bool(size > 0)


def _read_partitions(data: bytes, at: int) -> tuple[list[TopicPartition], int]:
    """Read partitions grouped by topic; returns the place after them too."""
    topic_partitions: list[TopicPartition] = []
    (topics,) = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(topics):
        topic, at = _read_text(data, at)
        (count,) = struct.unpack_from(">i", data, at)
        if not 0 <= count <= len(data) // 4:
            raise MalformedConsumerProtocol(f"an assignment of {len(data)} bytes cannot hold {count} partitions")
        numbers: tuple[int, ...] = struct.unpack_from(f">{count}i", data, at + 4)
        topic_partitions += (TopicPartition(topic, number) for number in numbers)
        at += 4 + 4 * count
    return topic_partitions, at


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign partitions as Kafka's range assignor: per topic, consecutive partitions to the members sorted by id.

    `partitions` is the number of partitions of each topic; the first members get one more if it does not divide evenly.

    >>> assign_range({"m2": ["t"], "m1": ["t"]}, {"t": 3})["m1"]
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    wanted = {member: set(topics) for member, topics in subscriptions.items()}
    for topic in sorted({topic for topics in wanted.values() for topic in topics}):
        members = sorted(member for member, topics in wanted.items() if topic in topics)
        each, more = divmod(partitions.get(topic, 0), len(members))
        at = 0
        for index, member in enumerate(members):
            count = each + (index < more)
            assigned[member] += (TopicPartition(topic, number) for number in range(at, at + count))
            at += count
    return assigned


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    if size < 0 or at + 2 + size > len(data):
        raise struct.error("a string ends after the end of the data")
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size
