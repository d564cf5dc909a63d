"""One of the two brokers being compared: asks, and writes down every answer in a form in which equal means the same.

What two right brokers may freely choose (topic ids, member ids, ports, directories, free space, the wording of error
messages) is replaced by a token that keeps its identity: the first topic id seen is `topic_id#1` on both sides.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.processes import until
from tests.support.wire_client import KEYS, NO_ID, Answer, ConnectionEnded, Wire, decode

# Field names whose value is the broker's own choice, and from which value on it is one.
NAMED_BY_THE_BROKER = {"topic_id", "member_id", "leader", "cluster_id", "session_id", "host", "log_dir", "client_host"}
NUMBERED_BY_THE_BROKER = {
    "producer_id",
    "port",
    "total_bytes",
    "usable_bytes",
    "last_timestamp",
    "transaction_start_time_ms",
    "finalized_features_epoch",
}
SAID_FREELY = {"error_message", "batch_index_error_message", "documentation"}
SORTED_BY = {  # arrays whose order means nothing
    "topics": ("name", "topic"),
    "topic_data": ("name", "topic_id"),
    "responses": ("name", "topic", "topic_id"),
    "partitions": ("partition_index", "partition"),
    "partition_responses": ("index",),
    "groups": ("group_id",),
    "results": ("name", "resource_name", "log_dir", "group_id"),
    "members": ("group_instance_id", "member_id"),
    "results_by_partition": ("partition_index",),
    "results_by_topic_v3_and_below": ("name",),
    "topic_results": ("name",),
    "transaction_states": ("transactional_id",),
    "config_resources": ("resource_type", "resource_name"),
}
UNKNOWN_TOPIC = 3
BEING_LOADED = frozenset({14, 15, 16})  # a coordinator is not there yet
PATIENCE_S = 8.0  # how long such answers are not yet taken for the last word
Fields = dict[str, Any]


@dataclass(slots=True)
class Entry:
    """One answer as compared."""

    label: str
    api: str
    version: int
    answer: Any


@dataclass(slots=True)
class Peer:
    """A broker, a connection to it, and what it said so far."""

    port: int
    versions: dict[str, tuple[int, int]]  # the versions to ask, the same for both brokers
    stem: str
    entries: list[Entry] = field(default_factory=list)
    tokens: dict[tuple[str, Any], str] = field(default_factory=dict)
    ids: dict[str, uuid.UUID] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection()

    @property
    def wire(self) -> Wire:
        """The first connection."""
        return self.wires[0]

    def connection(self) -> Wire:
        """One more connection, closed with the peer."""
        self.wires.append(Wire(self.port, timeout_s=8))
        return self.wires[-1]

    def close(self) -> None:
        """Close every connection."""
        for wire in self.wires:
            wire.close()

    def each(self, api: str) -> range:
        """The versions of an API to ask."""
        low, high = self.versions[api]
        return range(low, high + 1)

    def near(self, api: str, step: int) -> int:
        """The version `step` above the lowest, or the highest: so that calls of several APIs climb together."""
        low, high = self.versions[api]
        return min(low + step, high)

    def note(self, label: str, api: str, version: int, answer: Any) -> None:
        """Write down an answer."""
        self.entries.append(Entry(label, api, version, self.normal(answer)))

    def ask(self, label: str, api: str, version: int, *, wire: Wire | None = None, **fields: Any) -> Answer:
        """Send a request and note the response. A closed connection is noted too, and opened again."""
        wire = wire or self.wire
        try:
            answer = wire.call(api, version, **fields)
            patience = time.monotonic() + PATIENCE_S
            while passing(answer) and time.monotonic() < patience:
                answer = wire.call(api, version, **fields)
        except ConnectionEnded:
            self.note(label, api, version, "connection closed")
            self.wires[self.wires.index(wire)] = Wire(self.port, timeout_s=20)
            return {}
        self.note(label, api, version, answer)
        return answer

    def raw(self, label: str, key: int, version: int, body: bytes, read: Callable[[bytes], Any]) -> None:
        """Send a hand-made request (header v1 and `body`) on a connection of its own and write down what `read` makes of the answer."""
        with Wire(self.port, timeout_s=20) as wire:
            try:
                wire.send_frame(struct.pack(">hhihs", key, version, 77, 1, b"t") + body)
                frame = wire.receive_frame()
            except ConnectionEnded:
                said: Any = "connection closed"
            else:
                said = read(frame)
        self.note(label, next((name for name, number in KEYS.items() if number == key), str(key)), version, said)

    def quietly(self, api: str, version: int, **fields: Any) -> Answer:
        """Ask without writing down, for preparations; what is only being loaded is asked again."""
        patience = time.monotonic() + PATIENCE_S
        while passing(answer := self.wire.call(api, version, **fields)) and time.monotonic() < patience:
            pass
        return answer

    def topic(self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """Make a topic and wait until it can be written."""
        name = f"{self.stem}-{name}"
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        made = self.quietly("create_topics", 5, topics=[new], timeout=20_000)
        assert made["topics"][0]["error_code"] == 0, made
        until(lambda: self.is_ready(name, partitions), what=f"topic {name}")
        return name

    def is_ready(self, name: str, partitions: int) -> bool:
        """Whether every partition of a topic has a leader that answers; remembers the topic's id."""
        found = self.quietly("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)["topics"][0]
        if found["error_code"] or any(part["error_code"] for part in found["partitions"]):
            return False
        self.ids[name] = found["topic_id"]
        asked = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
        listed = self.quietly("list_offsets", 5, replica_id=-1, topics=[{"name": name, "partitions": asked}])
        return all(part["error_code"] == 0 for part in listed["topics"][0]["partitions"])

    def delete(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.quietly("delete_topics", 5, topic_names=[name], timeout=20_000)

        def is_gone() -> bool:
            asked = self.quietly("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
            return bool(asked["topics"][0]["error_code"] == UNKNOWN_TOPIC)

        def has_no_log() -> bool:  # it goes after the metadata: a fetch that comes between need not wait
            described = self.quietly("describe_log_dirs", 1, topics=None)
            return all(topic["name"] != name for found in described["results"] for topic in found["topics"])

        until(is_gone, what=f"the end of topic {name}")
        until(has_no_log, what=f"the removal of the log of {name}")

    def naming(self, name: str) -> Fields:
        """A topic as every version names it: by name, by id, or both."""
        return {"name": name, "topic": name, "topic_id": self.ids.get(name, NO_ID)}

    def write(self, name: str, records: bytes, *, partition: int = 0) -> Answer:
        """Produce without writing down; the partition's answer, which must be good."""
        part = {"index": partition, "records": records}
        said = self.quietly(
            "produce", 9, acks=-1, timeout=20_000, topic_data=[{"name": name, "partition_data": [part]}]
        )
        found: Answer = said["responses"][0]["partition_responses"][0]
        assert found["error_code"] == 0, found
        return found

    def normal(self, value: Any, name: str = "") -> Any:
        """An answer with what the broker may choose replaced by tokens."""
        match value:
            case dict():
                return {key: self.normal(item, key) for key, item in value.items()}
            case list() if name == "configs":  # by name, so that a setting only one side has is one difference
                return {each["name"]: self.normal(each) for each in value}
            case list():
                return self._array(value, name)
            case bool():
                return value
            case str() | uuid.UUID() | int() if name in NAMED_BY_THE_BROKER and value not in {"", NO_ID, 0, -1}:
                return self._token(name, value)
            case int() if name in NUMBERED_BY_THE_BROKER and value >= 0:
                return self._token(name, value) if name == "producer_id" else f"{name} >= 0"
            case int() if name == "log_append_time" and value > 0:
                return "a time"
            case str() if name in SAID_FREELY and value:
                return "some text"
            case _:
                return value

    def _array(self, items: list[Any], name: str) -> list[Any]:
        done = [self.normal(item, name) for item in items]
        keys = SORTED_BY.get(name, ())
        if done and all(isinstance(item, dict) for item in done) and any(key in done[0] for key in keys):
            done.sort(
                key=lambda item: [
                    (str(type(item.get(key))), item.get(key)) for key in keys if item.get(key) is not None
                ]
            )
        return done

    def _token(self, name: str, value: Any) -> str:
        kind = "member_id" if name == "leader" else name
        number = sum(1 for each in self.tokens if each[0] == kind) + 1
        return self.tokens.setdefault((kind, value), f"{kind}#{number}")


def passing(answer: Any) -> bool:
    """Whether an answer says only that something is still being loaded."""
    match answer:
        case dict():
            return answer.get("error_code") in BEING_LOADED or any(map(passing, answer.values()))
        case list():
            return any(map(passing, answer))
        case _:
            return False


def body_of(api: str, version: int) -> Callable[[bytes], Any]:
    """Reads an answer as a given version of an API, or says that it cannot be read so."""

    def read(frame: bytes) -> Any:
        try:
            return decode(api, version, frame)[1]
        except Exception as error:  # noqa: BLE001 - whatever a foreign answer does to the decoder is the finding
            return f"not a {api} v{version}: {type(error).__name__}"

    return read


def differences(expected: Any, found: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two answers differ: path, the one's value, the other's."""
    if isinstance(expected, dict) and isinstance(found, dict):
        out = []
        for key in sorted(expected.keys() | found.keys(), key=str):
            inner = f"{path}.{key}" if path else str(key)
            if key not in expected or key not in found:
                out.append((inner, expected.get(key, "absent"), found.get(key, "absent")))
            else:
                out += differences(expected[key], found[key], inner)
        return out
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            each
            for index, pair in enumerate(zip(expected, found, strict=True))
            for each in differences(*pair, f"{path}[{index}]")
        ]
    return [] if expected == found else [(path, expected, found)]
