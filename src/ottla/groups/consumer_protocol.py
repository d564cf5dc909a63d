"""Decodes the topics that a consumer subscribes to from its member metadata.

Metadata is opaque to the coordinator, which Connect, Streams and schema registries share. Only that of groups of type
`consumer` is decoded, to find offsets without a subscriber (KIP-211) and static members that return with the same
topics. Layout: Kafka's ConsumerProtocolSubscription.
"""

from __future__ import annotations

from collections.abc import Iterable

CONSUMER = "consumer"
"""The protocol type of Kafka's consumers."""

_TOPICS_MAX = 100_000
"""Bound on the topics of one subscription."""


class MalformedSubscription(ValueError):
    """Reports metadata that is not a ConsumerProtocolSubscription, as some clients of type `consumer` send."""


def topics_of(metadata: bytes) -> frozenset[str]:
    """Decode the topics of one subscription: int16 version, then an array of strings. Raises `MalformedSubscription`.

    >>> sorted(topics_of(bytes.fromhex("0000 00000002 0001 61 0001 62 ffffffff")))
    ['a', 'b']
    """
    if len(metadata) < 6:
        raise MalformedSubscription(f"{len(metadata)} bytes are too few")
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    if int.from_bytes(metadata[:2], "big", signed=True) < 0 or not 0 <= count <= _TOPICS_MAX:
        raise MalformedSubscription("invalid version or number of topics")
    topics, at = set(), 6
    for _ in range(count):
        size = int.from_bytes(metadata[at : at + 2], "big", signed=True)
        end = at + 2 + size
        if size < 0 or end > len(metadata):
            raise MalformedSubscription("a topic's name runs past the end")
        try:
            topics.add(metadata[at + 2 : end].decode())
        except UnicodeDecodeError as error:
            raise MalformedSubscription("a topic's name is not UTF-8") from error
        at = end
    return frozenset(topics)


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the union over all members, or None if one of them cannot be decoded."""
    try:
        return frozenset[str]().union(*(topics_of(metadata) for metadata in subscriptions))
    except MalformedSubscription:
        return None
