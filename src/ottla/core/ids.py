"""Names partitions, topics and ids in Kafka's text forms, and lists Kafka's internal topics and the types of groups."""

from __future__ import annotations

import base64
import re
import uuid
from enum import StrEnum
from typing import Final, NamedTuple

from ottla.core.runtime import new_uuid

NO_TOPIC_ID = uuid.UUID(int=0)

# The number in Kafka's messages and files where there is none, or it is unknown.
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
"""In place of a broker epoch: the leader does not know it, and it is not compared."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
AUDIT_TOPIC = "__ottla_audit"
"""The security audit log, if the settings ask for it as a topic."""
EVENTS_TOPIC = "__ottla_events"
"""The events of all brokers, if the settings ask for them as a topic."""
METADATA_TOPIC = "__cluster_metadata"
"""The metadata log of a KRaft Kafka: never a topic of the cluster."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC, AUDIT_TOPIC, EVENTS_TOPIC})
"""Topics that the brokers themselves use: clients may read them but not write or delete them."""

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_TOPIC_CHARS_MAX = 249
_FLIPPED_BITS_MAX = 12  # two characters of the text form; by chance once in 10^20 pairs


class GroupType(StrEnum):
    """Lists the types of groups, with Kafka's names in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class ProducerIdAndEpoch(NamedTuple):
    """Identifies one incarnation of a producer; (-1, -1) is a producer without idempotence."""

    producer_id: int = -1
    epoch: int = -1


class TopicPartition(NamedTuple):
    """Names one partition of a topic; its text is Kafka's `web-access-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def why_illegal_topic(name: str) -> str | None:
    """Explain why `name` cannot be the name of a topic; None if it can (Kafka's `Topic.validate`)."""
    if not name:
        return "the topic name is empty"
    if name in {".", ".."}:
        return f"a topic cannot be called {name!r}"
    if len(name) > _TOPIC_CHARS_MAX:
        return f"the topic name has {len(name)} characters; the limit is {_TOPIC_CHARS_MAX}"
    if not _LEGAL_TOPIC.fullmatch(name):
        return f"the topic name {name!r} may only hold ASCII letters, digits, '.', '_' and '-'"
    return None


def id_text(identifier: uuid.UUID) -> str:
    """Format a 128-bit id as Kafka does: URL-safe base64 without padding, 22 characters.

    >>> id_text(uuid.UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(identifier.bytes).rstrip(b"=").decode()


def parse_id(text: str) -> uuid.UUID:
    """Parse the text that `id_text` writes. Raises ValueError if it is not such a text.

    >>> parse_id("AAAAAAAAAAAAAAAAAAAAAQ").int
    1
    """
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a Kafka id: 22 base64 characters")
    return uuid.UUID(bytes=raw)


def is_corrupt_copy(identifier: uuid.UUID, of: uuid.UUID) -> bool:
    """Return whether an id is another one with a few flipped bits: two random ids differ in about 61 bits.

    >>> is_corrupt_copy(uuid.UUID(int=5), of=uuid.UUID(int=7)), is_corrupt_copy(uuid.UUID(int=7), of=uuid.UUID(int=7))
    (True, False)
    """
    return 0 < (identifier.int ^ of.int).bit_count() <= _FLIPPED_BITS_MAX


def may_be_topic_id(found: uuid.UUID, topic_id: uuid.UUID) -> bool:
    """Return whether the id found in a partition's directory may be the topic's: it is, or it is missing or corrupt."""
    return found in {NO_TOPIC_ID, topic_id} or is_corrupt_copy(found, topic_id)


def random_topic_id() -> uuid.UUID:
    """Draw a new id. Kafka avoids texts that start with '-', which command lines read as options."""
    while True:
        candidate = new_uuid()
        if not id_text(candidate).startswith("-"):
            return candidate
