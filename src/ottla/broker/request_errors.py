"""Counts the error codes of responses, and records as events those that a client caused or should know.

The driver shows it each response before it is encoded: the *account* of errors, for every API. Produce, Fetch and
JoinGroup have more to say where they refuse, and do it there.

Where an error stands in a response is read once from the declaration of its message: a response without errors costs a
look at its own code, and one at each element of at most `ELEMENTS_MAX`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.core.error_codes import NUMBERS, ErrorCode
from ottla.core.errors import KafkaError, error_code_for, error_for
from ottla.core.events import EventKind, EventLog
from ottla.wire import codec
from ottla.wire.apis import BETWEEN_BROKERS, ApiKey

if TYPE_CHECKING:  # names only
    from ottla.wire.schema import Shape

ELEMENTS_MAX: Final = 1_000
"""Elements of a response at which is looked: errors of later ones are neither counted nor recorded."""

EVENTS_OF_RESPONSE: Final = 3
"""Different errors of a response that become events."""

PASSING: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
)
"""Errors after which clients ask again, as whenever a leader moves: elections and rebalances are events themselves."""

DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""The authorizer records these, with the ACL that was missing."""

ELSEWHERE: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP})
"""Those that are recorded where they are refused."""

_OF_TOPICS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""Their messages say what they are about."""

NOT_OF_CLIENTS: Final = BETWEEN_BROKERS | {
    ApiKey.API_VERSIONS,  # UNSUPPORTED_VERSION is how versions are agreed upon
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
}
"""APIs whose errors are counted, but are no event."""


_NAMES: Final = ("group_id", "topic_name", "name", "topic", "transactional_id", "resource_name")
_PARTITIONS: Final = ("partition_index", "partition")


class ErrorPlaces:
    """The places of errors in a message, its own and of its arrays, and the fields that say whose they are."""

    __slots__ = ("arrays", "code", "is_group", "is_topic", "message", "name", "partition")

    def __init__(self, shape: type[Shape], attribute: str = "") -> None:
        names = {field.name for field in shape.WIRE}
        self.code = next((name for name in ("error_code", "partition_error_code") if name in names), "")
        self.message = "error_message" if "error_message" in names else ""
        self.name = next((name for name in _NAMES if name in names), "")
        self.partition = next((name for name in _PARTITIONS if name in names), "")
        self.is_group = self.name == "group_id"
        self.is_topic = self.name in ("topic", "topic_name") or bool(
            {"topic_id", "partitions"} & names or "topic" in attribute
        )
        self.arrays: list[tuple[str, ErrorPlaces]] = []
        for field in shape.WIRE:
            if field.array and not isinstance(field.type, str):
                places = ErrorPlaces(field.type, field.name)
                if places.code or places.arrays:
                    self.arrays.append((field.name, places))

    def name_of(self, element: Any) -> str:
        """Return what an element is called, if it says so."""
        name = getattr(element, self.name) if self.name else ""
        return name if isinstance(name, str) else ""


class _Found:
    """The first element of a response with each error, with those around it; and how many elements are looked at."""

    __slots__ = ("around", "by_code", "left")

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX
        self.around: list[tuple[ErrorPlaces, Any]] = []
        self.by_code: dict[int, list[tuple[ErrorPlaces, Any]]] = {}


def error_places(key: ApiKey) -> ErrorPlaces:
    """Return where the errors are in the response of an API."""
    return ErrorPlaces(codec.shape_class(key, "Response"))


class RequestErrors:
    """The errors of one broker's responses. Lives on its loop."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}  # by API key and error code: a table of Kafka's bounds it
        self.events: EventLog | None = None  # the broker sets it
        self._left = 0  # elements at which may be looked

    def note(self, key: int, code: int) -> None:
        """Count an error."""
        where = key, code
        self.counts[where] = self.counts.get(where, 0) + 1

    def refused(
        self, key: int, error: BaseException, *, topic: str = "", partition: int = -1, group: str = "", client: str = ""
    ) -> None:
        """Count an error of a partition, and record it."""
        self.note(key, error_code_for(error))
        self.record(key, error, topic=topic, partition=partition, group=group, client=client)

    def record(
        self, key: int, error: BaseException, *, topic: str = "", partition: int = -1, group: str = "", client: str = ""
    ) -> None:
        """Record an error that is counted in the response."""
        message = error.message if isinstance(error, KafkaError) else str(error)
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        self._record(key, code, message, topic=topic, partition=partition, group=group, client=client)

    def look_at(self, key: int, places: ErrorPlaces, answer: Any, client_id: str | None) -> None:
        """Count the errors of a response, and record those that its client should know."""
        self._left = ELEMENTS_MAX
        if (places.code and answer.error_code) or (places.arrays and self._has_error(places, answer)):
            found = _Found()
            self._look(key, places, answer, found)
            if key not in ELSEWHERE and key not in NOT_OF_CLIENTS:
                for code, around in list(found.by_code.items())[:EVENTS_OF_RESPONSE]:
                    self._record_found(key, code, around, client_id or "")

    def _has_error(self, places: ErrorPlaces, element: Any) -> bool:
        """Return whether an element of an array has an error: most responses have none, and cost no more than this."""
        for attribute, inner in places.arrays:
            for part in getattr(element, attribute) or ():
                self._left -= 1
                if self._left < 0:
                    return False
                if inner.code and getattr(part, inner.code):
                    return True
                if inner.arrays and self._has_error(inner, part):
                    return True
        return False

    def _look(self, key: int, places: ErrorPlaces, element: Any, found: _Found) -> None:
        found.around.append((places, element))
        if places.code and (code := getattr(element, places.code)):
            self.note(key, code)
            if code not in found.by_code:
                found.by_code[code] = list(found.around)
        for attribute, inner in places.arrays:
            for part in getattr(element, attribute) or ():
                found.left -= 1
                if found.left < 0:
                    break
                if inner.arrays or getattr(part, inner.code):
                    self._look(key, inner, part, found)
        found.around.pop()

    def _record_found(self, key: int, code: int, around: list[tuple[ErrorPlaces, Any]], client_id: str) -> None:
        """Record an error with what its element and those around it say: whose it is, and why."""
        topic = group = name = ""
        for places, element in around:
            named = places.name_of(element)
            if places.is_group:
                group = named
            elif places.is_topic:
                topic = named or topic
            else:
                name = named or name
        places, element = around[-1]
        message = (getattr(element, places.message) if places.message else "") or error_for(code).message
        self._record(
            key,
            code,
            f"{name}: {message}" if name else message,
            topic=topic,
            partition=getattr(element, places.partition) if places.partition else -1,
            group=group,
            client=client_id,
        )

    def _record(
        self, key: int, code: int, message: str, *, topic: str, partition: int, group: str, client: str
    ) -> None:
        error = ErrorCode(code) if code in NUMBERS else ErrorCode.UNKNOWN_SERVER_ERROR
        if self.events is None or error in PASSING or error in DENIED:
            return
        from ottla.security.audit_log import api_name

        api = api_name(key)
        self.events.record(
            EventKind.REFUSED,
            message if key in _OF_TOPICS else f"{api}: {message}",
            api=api,
            topic=topic,
            partition=partition,
            group=group,
            client=client,
            error=error.name,
        )
