"""Lists where the requests of each API have their elements, and where its responses answer them.

An element is a topic, a partition, a group, a resource. With this table a request is divided into those of its elements
that a fault hits and the rest (`split`), whatever its API, and the responses to both are made one (`merge`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.core.error_codes import ErrorCode
from ottla.wire.apis import ApiKey

NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class Level:
    """A list of elements of a request, and the list of the response with their answers.

    `keys` maps the fields of the answer that say which element it is about to those of the element; to None if the
    element is a number or a name. `answers` None: the answers to the elements below are in the list of the level above.
    """

    elements: str
    answers: str | None
    keys: Mapping[str, str | None]
    below: Level | None = None
    topic: str | None = None  # the field of the element with a topic's name, "" if the element is one
    partition: str | None = None  # the same for a partition's number

    @property
    def has_topics(self) -> bool:
        """Return whether elements of this level, or below, are those of a topic."""
        return self.topic is not None or (self.below is not None and self.below.has_topics)

    @property
    def has_partitions(self) -> bool:
        """Return whether elements of this level, or below, are partitions."""
        return self.partition is not None or (self.below is not None and self.below.has_partitions)


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of the versions of an API up to `until`.

    `own_errors`: those for which the response's own error code is meant; others of the whole request are answered for
    each element. None: the response's own error code is meant for all. `more`: other lists of the same elements.
    """

    level: Level
    until: int = 32767
    own_errors: frozenset[ErrorCode] | None = None
    more: tuple[Level, ...] = ()


def _topics(
    answers: str,
    *,
    elements: str = "topics",
    name: str = "name",
    answered_name: str | None = None,
    below: Level | None = None,
) -> Level:
    keys = {answered_name or name: name, "topic_id": "topic_id"}
    return Level(elements, answers, keys, below, topic=name)


def _partitions(
    answers: str, *, elements: str = "partitions", number: str = "partition_index", answered: str | None = None
) -> Level:
    return Level(elements, answers, {answered or number: number}, partition=number)


def _numbers(answers: str, *, elements: str = "partitions", answered: str = "partition_index") -> Level:
    return Level(elements, answers, {answered: None}, partition="")


def _names(elements: str, answers: str, answered: str) -> Level:
    return Level(elements, answers, {answered: None})


_PARTITIONS = _partitions("partitions")
_OFFSETS = _topics("topics", below=_PARTITIONS)
_SHARE_STATES = _topics("results", name="topic_id", below=_partitions("partitions", number="partition"))
METADATA_TOPICS = _topics("topics")
_RESOURCE_KEYS = {"resource_type": "resource_type", "resource_name": "resource_name"}
_TRANSACTION_TOPICS = _topics("topic_results", below=_numbers("results_by_partition"))

_TABLE: dict[ApiKey, tuple[Elements, ...]] = {
    ApiKey.PRODUCE: (
        Elements(
            _topics(
                "responses",
                elements="topic_data",
                below=_partitions("partition_responses", elements="partition_data", number="index"),
            )
        ),
    ),
    ApiKey.FETCH: (
        Elements(
            _topics(
                "responses",
                name="topic",
                below=_partitions("partitions", number="partition", answered="partition_index"),
            ),
            own_errors=frozenset(
                {
                    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                }
            ),
        ),
    ),
    ApiKey.LIST_OFFSETS: (Elements(_OFFSETS),),
    ApiKey.METADATA: (Elements(METADATA_TOPICS, own_errors=frozenset({ErrorCode.REBOOTSTRAP_REQUIRED})),),
    ApiKey.OFFSET_COMMIT: (Elements(_OFFSETS),),
    ApiKey.OFFSET_FETCH: (
        Elements(_topics("topics", below=_numbers("partitions", elements="partition_indexes")), until=7),
        Elements(
            Level(
                "groups",
                "groups",
                {"group_id": "group_id"},
                _topics("topics", below=_numbers("partitions", elements="partition_indexes")),
            )
        ),
    ),
    ApiKey.FIND_COORDINATOR: (Elements(_names("coordinator_keys", "coordinators", "key")),),
    ApiKey.DESCRIBE_GROUPS: (Elements(_names("groups", "groups", "group_id")),),
    ApiKey.CREATE_TOPICS: (Elements(_topics("topics")),),
    ApiKey.DELETE_TOPICS: (
        Elements(Level("topic_names", "responses", {"name": None}, topic=""), until=5),
        Elements(_topics("responses")),
    ),
    ApiKey.DELETE_RECORDS: (Elements(_OFFSETS),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Elements(_topics("topics", name="topic", below=_partitions("partitions", number="partition"))),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Elements(
            _topics(
                "results_by_topic_v3_and_below", elements="v3_and_below_topics", below=_numbers("results_by_partition")
            ),
            until=3,
        ),
        Elements(
            Level(
                "transactions", "results_by_transaction", {"transactional_id": "transactional_id"}, _TRANSACTION_TOPICS
            )
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Elements(
            Level(
                "markers",
                "markers",
                {"producer_id": "producer_id"},
                _topics("topics", below=_numbers("partitions", elements="partition_indexes")),
            )
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (Elements(_OFFSETS),),
    ApiKey.CREATE_ACLS: (Elements(Level("creations", "results", {})),),
    ApiKey.DELETE_ACLS: (Elements(Level("filters", "filter_results", {})),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Elements(Level("entries", "entries", {"entity": "entity"})),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        Elements(
            Level("deletions", "results", {"user": "name"}), more=(Level("upsertions", "results", {"user": "name"}),)
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (Elements(Level("resources", "results", _RESOURCE_KEYS, topic="resource_name")),),
    ApiKey.ALTER_CONFIGS: (Elements(Level("resources", "responses", _RESOURCE_KEYS, topic="resource_name")),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Elements(Level("resources", "responses", _RESOURCE_KEYS, topic="resource_name")),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Elements(Level("dirs", None, {}, _topics("results", answered_name="topic_name", below=_numbers("partitions")))),
    ),
    ApiKey.CREATE_PARTITIONS: (Elements(_topics("results")),),
    ApiKey.DELETE_GROUPS: (Elements(_names("groups_names", "results", "group_id")),),
    ApiKey.ELECT_LEADERS: (
        Elements(
            _topics(
                "replica_election_results",
                elements="topic_partitions",
                name="topic",
                below=_numbers("partition_result", answered="partition_id"),
            )
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (Elements(_topics("responses", below=_PARTITIONS)),),
    ApiKey.OFFSET_DELETE: (Elements(_OFFSETS),),
    ApiKey.DESCRIBE_QUORUM: (Elements(_topics("topics", name="topic_name", below=_PARTITIONS)),),
    ApiKey.DESCRIBE_PRODUCERS: (
        Elements(_topics("topics", below=_numbers("partitions", elements="partition_indexes"))),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (Elements(_names("transactional_ids", "transaction_states", "transactional_id")),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Elements(_names("group_ids", "groups", "group_id")),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (Elements(_topics("topics")),),
    ApiKey.SHARE_GROUP_DESCRIBE: (Elements(_names("group_ids", "groups", "group_id")),),
    ApiKey.SHARE_FETCH: (Elements(_topics("responses", name="topic_id", below=_PARTITIONS)),),
    ApiKey.SHARE_ACKNOWLEDGE: (Elements(_topics("responses", name="topic_id", below=_PARTITIONS)),),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (Elements(_SHARE_STATES),),
    ApiKey.READ_SHARE_GROUP_STATE: (Elements(_SHARE_STATES),),
    ApiKey.WRITE_SHARE_GROUP_STATE: (Elements(_SHARE_STATES),),
    ApiKey.DELETE_SHARE_GROUP_STATE: (Elements(_SHARE_STATES),),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (Elements(_SHARE_STATES),),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        Elements(
            Level(
                "groups",
                "groups",
                {"group_id": "group_id"},
                _topics("topics", name="topic_name", below=_numbers("partitions")),
            )
        ),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (Elements(_topics("responses", name="topic_name", below=_PARTITIONS)),),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (Elements(_topics("responses", name="topic_name")),),
    ApiKey.ALTER_PARTITION: (Elements(_topics("topics", name="topic_id", below=_PARTITIONS)),),
}


def elements_of(key: ApiKey, version: int) -> Elements | None:
    """Return the elements of an API; None if its requests are about one thing, or its responses name no elements."""
    for elements in _TABLE.get(key, ()):
        if version <= elements.until:
            return elements
    return None


def newest_elements_of(key: ApiKey) -> Elements | None:
    """Return the elements of the newest version of an API that is served."""
    return elements_of(key, (APIS.get(key) or INTER_BROKER_APIS[key]).max_version)


Selects = Callable[[Any, int], bool]
"""Whether a fault hits a partition of a topic, which is given as its name, its id, or both; -1 without partition."""


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A topic as a request names it."""

    name: str
    topic_id: Any


_RESOURCE_TOPIC = 2


def split(level: Level, body: Any, selects: Selects) -> tuple[Any | None, Any | None]:
    """Divide a request into one with the elements that are selected and one with the others; None without elements."""
    hit, rest = _split(level, getattr(body, level.elements) or (), selects, None)
    return _with(body, level, hit) if hit else None, _with(body, level, rest) if rest else None


def _split(
    level: Level, elements: Sequence[Any], selects: Selects, topic: TopicKey | None
) -> tuple[list[Any], list[Any]]:
    hit: list[Any] = []
    rest: list[Any] = []
    for element in elements:
        here = topic if level.topic is None else _topic_of(level.topic, element)
        if level.below is None:
            number = _value(element, level.partition) if level.partition is not None else NO_PARTITION
            (hit if here is not None and selects(here, number) else rest).append(element)
            continue
        hit_below, rest_below = _split(level.below, getattr(element, level.below.elements) or (), selects, here)
        if hit_below:
            hit.append(_with(element, level.below, hit_below))
        if rest_below or not hit_below:
            rest.append(_with(element, level.below, rest_below))
    return hit, rest


def _topic_of(field: str, element: Any) -> TopicKey | None:
    if getattr(element, "resource_type", _RESOURCE_TOPIC) != _RESOURCE_TOPIC:
        return None
    name = _value(element, field)
    if field == "topic_id":
        return TopicKey("", name)
    return TopicKey(name or "", getattr(element, "topic_id", None))


def _value(element: Any, field: str | None) -> Any:
    return getattr(element, field) if field else element


def _with(holder: Any, level: Level, elements: list[Any]) -> Any:
    """Return a copy of a struct with other elements."""
    changed = copy.copy(holder)
    setattr(changed, level.elements, elements)
    return changed


def key_of(level: Level, answer: Any) -> tuple[Any, ...]:
    """Return what says which element an answer is about."""
    return tuple(getattr(answer, field, None) for field in level.keys)


def fill_keys(level: Level, element: Any, answer: Any) -> None:
    """Write into an answer which element it is about."""
    for field, source in level.keys.items():
        value = element if source is None else getattr(element, source, None)
        if value is not None and hasattr(answer, field):
            setattr(answer, field, value)


def list_shape(shape: type[Any], name: str) -> type[Any]:
    """Return the class of the structs in a list."""
    (inner,) = (field.type for field in shape.WIRE if field.name == name)
    assert not isinstance(inner, str), f"{name} is a list of structs"
    return cast("type[Any]", inner)


def answer_shape(level: Level, response: type[Any]) -> type[Any]:
    """Return the class of a level's answers."""
    return list_shape(response, level.answers or "")


def merge(level: Level, into: Any, more: Any) -> None:
    """Add the answers of one response to another. An answer about the same element replaces that there is."""
    if level.answers is None:
        assert level.below is not None
        merge(level.below, into, more)
        return
    answers = getattr(into, level.answers)
    if answers is None:
        answers = []
        setattr(into, level.answers, answers)
    places = {key_of(level, answer): place for place, answer in enumerate(answers)} if level.keys else {}
    for answer in getattr(more, level.answers) or ():
        place = places.get(key_of(level, answer))
        if place is None:
            answers.append(answer)
        elif level.below is not None and level.below.answers is not None:
            merge(level.below, answers[place], answer)
        else:
            answers[place] = answer
