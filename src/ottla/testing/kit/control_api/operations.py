"""Lists the operations of the control API: the kit's own methods, for tests in other languages.

The signature of each function says all about its operation: parameters that the path names come from there, others
from the query of a GET or DELETE, or from the JSON body; a parameter that is a dataclass stands for its fields.
`server.py` serves this table, and `openapi.py` describes it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import threading
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeVar

from ottla.core.ids import GroupType
from ottla.testing.kit.assertions.group_values import Delivery, Member, PartitionLag
from ottla.testing.kit.assertions.lookups import NotFound
from ottla.testing.kit.assertions.producing import ProducerRecord, RecordMetadata
from ottla.testing.kit.assertions.topics import Isolation, Offsets, PartitionInfo
from ottla.testing.kit.assertions.transactions import Transaction
from ottla.testing.kit.control_api.values import Field, Limits, field_of, fields_of
from ottla.testing.kit.faults.fault import Fault
from ottla.testing.kit.kafka import Kafka

_FAULTS_MAX = 10_000
_POLL_S = 0.01
_PATH_NAME = re.compile(r"{(\w+)}")

ApiName = Annotated[str, "an API by Kafka's name, such as Produce"]
AnyApi = Annotated[str | None, "an API by Kafka's name; all without one"]
ErrorName = Annotated[str, "an error by Kafka's name, such as NOT_LEADER_OR_FOLLOWER"]
Times = Annotated[int | None, "how often the fault happens; without it until it is removed", Limits(1, 1 << 31)]
Handled = Annotated[bool, "whether the request is handled all the same"]
BrokerId = Annotated[int, "the node id of a broker"]
TopicName = Annotated[str, "the name of a topic"]
Index = Annotated[int, "the number of a partition"]
DiskOperation = Annotated[str, "open, create, read, write, truncate, sync, mkdir, rename or remove"]


class Operation:
    """One operation: its route, and the function that runs it, whose signature is read when it is needed first."""

    def __init__(self, method: str, path: str, run: Callable[..., Any]) -> None:
        self.method, self.path, self.run = method, path, run

    @property
    def summary(self) -> str:
        """Return the first line of the function's docstring."""
        return inspect.getdoc(self.run).splitlines()[0]  # type: ignore[union-attr]

    @property
    def path_names(self) -> tuple[str, ...]:
        """Return the names of the arguments that the path has."""
        return tuple(_PATH_NAME.findall(self.path))

    @cached_property
    def signature(self) -> Signature:
        """Return the arguments and the result."""
        hints = typing.get_type_hints(self.run, include_extras=True)
        arguments: list[Field] = []
        flattened: list[tuple[str, type[Any]]] = []
        for parameter in list(inspect.signature(self.run).parameters.values())[1:]:
            hint = hints[parameter.name]
            if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
                flattened.append((parameter.name, hint))
                arguments += fields_of(hint)
            elif parameter.default is inspect.Parameter.empty:
                arguments.append(field_of(parameter.name, hint))
            else:
                arguments.append(field_of(parameter.name, hint, parameter.default))
        return Signature(tuple(arguments), tuple(flattened), field_of("", hints["return"]))


class Signature(NamedTuple):
    """The parameters and the answer of an operation."""

    arguments: tuple[Field, ...]
    flattened: tuple[tuple[str, type[Any]], ...]  # parameters that stand for their fields
    result: Field


class FaultLimit(ValueError):
    """Reports that a test makes faults without end."""


class Control:
    """The brokers of one process, with the faults that clients of the control API have made."""

    def __init__(self, kit: Kafka) -> None:
        self.kit = kit
        self._faults: dict[int, Fault] = {}
        self._ids = itertools.count(1)
        self._resetting = threading.Lock()

    def add(self, fault: Fault) -> FaultState:
        """Give a fault its id."""
        if len(self._faults) >= _FAULTS_MAX:
            fault.remove()
            raise FaultLimit(f"there are {_FAULTS_MAX} faults: DELETE /faults")
        fault_id = next(self._ids)
        self._faults[fault_id] = fault
        return self.state(fault_id)

    def state(self, fault_id: int) -> FaultState:
        """Return the state of a fault. Raises NotFound."""
        fault = self.fault(fault_id)
        failure = None if fault.failure is None else f"{type(fault.failure).__name__}: {fault.failure}"
        return FaultState(fault_id, fault.what, fault.count, failure)

    def fault(self, fault_id: int) -> Fault:
        """Return a fault by its id. Raises NotFound."""
        fault = self._faults.get(fault_id)
        if fault is None:
            raise NotFound(f"there is no fault {fault_id}")
        return fault

    def faults(self) -> list[FaultState]:
        """Return all faults that were made and not removed, also those that are over."""
        return [self.state(fault_id) for fault_id in list(self._faults)]

    def remove(self, fault_id: int) -> None:
        """Remove a fault. Raises NotFound."""
        self.fault(fault_id).remove()
        self._faults.pop(fault_id, None)

    def clear(self) -> None:
        """Remove all faults."""
        self.kit.clear_faults()
        self._faults.clear()

    def reset(self) -> None:
        """Begin again, one reset after the other."""
        with self._resetting:
            self.clear()
            self.kit.reset()


OPERATIONS: list[Operation] = []

F = TypeVar("F", bound=Callable[..., Any])


def operation(method: str, path: str) -> Callable[[F], F]:
    """Add a function to the table."""

    def add(function: F) -> F:
        OPERATIONS.append(Operation(method, path, function))
        return function

    return add


# ---- Values


@dataclass(frozen=True, slots=True)
class FaultState:
    """A fault. What happened at once has the number of connections, members or files that it changed as its count.

    A fault that could not be applied, such as a response without Kafka's fields, has ended with a failure.
    """

    id: int
    what: str
    count: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an operation that has nothing to say."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers that run: the addresses for clients, and each by its node id; and the brokers' time of day."""

    bootstrap: str
    brokers: dict[str, str]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Names:
    """Names of topics or groups."""

    names: list[str]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: replicas and offsets of each partition, and the settings that apply."""

    name: str
    partitions: list[PartitionInfo]
    offsets: dict[str, Offsets]
    config: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a record."""

    key: str
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class RecordState:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class RecordList:
    """Records, by partition and offset."""

    records: list[RecordState]


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to produce. Without a partition the key chooses one, without a timestamp it is the brokers' time."""

    key: bytes | None = None
    value: bytes | None = None
    partition: int | None = None
    headers: list[Header] = field(default_factory=list)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset to commit."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ProducedRecords:
    """The places of records that were produced, in the order of the request."""

    records: list[RecordMetadata]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group. Without a committed offset and without a topic of its members there is no lag."""

    group_id: str
    type: str
    state: str
    members: list[Member]
    partitions: list[PartitionLag]
    lag: int | None
    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class Transactions:
    """All transactional ids with their last transactions."""

    transactions: list[Transaction]


@dataclass(frozen=True, slots=True)
class RequestState:
    """A request of a client, with the errors in its response, and the faults that changed something."""

    api: str
    version: int
    client_id: str | None
    broker: int
    time_ms: int
    duration_ms: float | None
    is_answered: bool
    errors: list[str]
    faults: list[str]


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of clients, in the order in which they came."""

    requests: list[RequestState]


@dataclass(frozen=True, slots=True)
class Log:
    """The last lines of the brokers' log."""

    log: str


@dataclass(frozen=True, slots=True)
class Selected:
    """The requests that a fault is about."""

    topic: Annotated[str | None, "only requests, or elements of them, about this topic"] = None
    partition: Annotated[int | None, "only about this partition"] = None
    client_id: Annotated[str | None, "only requests with this client id"] = None
    broker: Annotated[int | None, "only requests to the broker with this node id"] = None
    between_brokers: Annotated[bool, "requests of other brokers too"] = False


# ---- The cluster


@operation("GET", "/cluster")
def cluster(control: Control) -> Cluster:
    """Return the addresses of the brokers that run, and their time."""
    brokers = {str(node_id): address for node_id, address in control.kit.brokers.items()}
    return Cluster(control.kit.bootstrap, brokers, control.kit.now_ms())


@operation("POST", "/down")
def down(
    control: Control, *, broker: BrokerId = 1, killed: Annotated[bool, "as SIGKILL does, not as SIGTERM"] = False
) -> Done:
    """Stop a broker; its disk and its port stay."""
    control.kit.down(broker, killed=killed)
    return Done()


@operation("POST", "/up")
def up(control: Control, *, broker: BrokerId = 1) -> Done:
    """Start a broker that is down, with its disk, on its port."""
    control.kit.up(broker)
    return Done()


@operation("POST", "/advance")
def advance(
    control: Control,
    *,
    days: Annotated[float, Limits(0, 10_000)] = 0,
    hours: Annotated[float, Limits(0, 1_000_000)] = 0,
    minutes: Annotated[float, Limits(0, 10_000_000)] = 0,
    seconds: Annotated[float, Limits(0, 1_000_000_000)] = 0,
    ms: Annotated[float, Limits(0, 1_000_000_000_000)] = 0,
) -> Done:
    """Move the brokers' time on; returns when what was due is done: retention, sessions, timeouts."""
    control.kit.advance(days=days, hours=hours, minutes=minutes, seconds=seconds, ms=ms)
    return Done()


@operation("POST", "/move-leader")
def move_leader(control: Control, *, topic: TopicName, partition: Index = 0, to: BrokerId) -> FaultState:
    """Let another replica lead a partition; returns when all brokers know it."""
    return control.add(control.kit.move_leader(topic, partition, to=to))


@operation("POST", "/expire")
def expire(
    control: Control, *, group: str, member: Annotated[str | None, "a member id or a client id; all without it"] = None
) -> FaultState:
    """End the sessions of a group's members, or of one; the count says how many."""
    return control.add(control.kit.expire(group, member))


@operation("POST", "/fence")
def fence(control: Control, *, transactional_id: str) -> FaultState:
    """Fence the producer of a transactional id, as another one does that is initialized with it."""
    return control.add(control.kit.fence(transactional_id))


@operation("POST", "/partition-network")
def partition_network(
    control: Control,
    *,
    sides: Annotated[list[list[int | str]], "who reach one another: brokers by node id, clients by client id"],
) -> FaultState:
    """Let brokers and clients not reach those of another side, until the fault is removed."""
    return control.add(control.kit.partition_network(*sides))


@operation("POST", "/heal-network")
def heal_network(control: Control) -> Done:
    """Let all reach one another again."""
    control.kit.heal_network()
    return Done()


@operation("POST", "/reset")
def reset(control: Control) -> Cluster:
    """Begin again with the topics of the start and without faults; the addresses stay."""
    control.reset()
    return cluster(control)


# ---- Faults of requests


@operation("POST", "/fail")
def fail(control: Control, *, api: ApiName, error: ErrorName, times: Times = None, selected: Selected) -> FaultState:
    """Answer requests by an error and do not handle them; with a topic or partition only that part of a request."""
    return control.add(control.kit.fail(api, error, times=times, **asdict(selected)))


@operation("POST", "/delay")
def delay(
    control: Control,
    *,
    api: AnyApi = None,
    ms: Annotated[float, "by the brokers' time, which /advance moves", Limits(0, 1_000_000_000)],
    handled: Annotated[bool, "send responses later; without it handle requests later"] = True,
    times: Times = None,
    selected: Selected,
) -> FaultState:
    """Send responses later, or handle requests later."""
    return control.add(control.kit.delay(api, ms=ms, handled=handled, times=times, **asdict(selected)))


@operation("POST", "/drop")
def drop(
    control: Control, *, api: AnyApi = None, handled: Handled = True, times: Times = None, selected: Selected
) -> FaultState:
    """Send no response; the connection waits for ever."""
    return control.add(control.kit.drop(api, handled=handled, times=times, **asdict(selected)))


@operation("POST", "/cut")
def cut(
    control: Control, *, api: AnyApi = None, handled: Handled = True, times: Times = None, selected: Selected
) -> FaultState:
    """Close connections now; with an API in place of responses."""
    return control.add(control.kit.cut(api, handled=handled, times=times, **asdict(selected)))


@operation("POST", "/answer")
def answer(
    control: Control,
    *,
    api: ApiName,
    response: Annotated[dict[str, Any], "fields of Kafka's message in snake_case; the others have their defaults"],
    times: Times = None,
    selected: Selected,
) -> FaultState:
    """Answer requests by a response."""
    return control.add(control.kit.answer(api, lambda _: response, times=times, **asdict(selected)))


@operation("GET", "/requests")
def requests(
    control: Control,
    *,
    api: AnyApi = None,
    client_id: Annotated[str | None, "only of this client id"] = None,
    broker: Annotated[int | None, "only to the broker with this node id"] = None,
    limit: Annotated[int, "the last so many", Limits(1, 10_000)] = 1000,
) -> Requests:
    """Return the requests of clients, in the order in which they came."""
    found = control.kit.requests(api, client_id=client_id, broker=broker)[-limit:]
    return Requests(
        [
            RequestState(
                api=each.api,
                version=each.version,
                client_id=each.client_id,
                broker=each.broker,
                time_ms=each.time_ms,
                duration_ms=each.duration_ms,
                is_answered=each.is_answered,
                errors=list(each.errors),
                faults=list(each.faults),
            )
            for each in found
        ]
    )


# ---- Faults of disks


@operation("POST", "/disk/full")
def disk_full(control: Control, *, broker: BrokerId = 1) -> FaultState:
    """Leave no space on a broker's disk, until the fault is removed."""
    return control.add(control.kit.disk.full(broker))


@operation("POST", "/disk/fail")
def disk_fail(
    control: Control, *, operation: DiskOperation, error: Annotated[str, "an errno"] = "EIO", broker: BrokerId = 1
) -> FaultState:
    """Let all operations of a kind fail, until the fault is removed."""
    return control.add(control.kit.disk.fail(operation, error=error, broker=broker))


@operation("POST", "/disk/slow")
def disk_slow(
    control: Control,
    *,
    ms: Annotated[float, Limits(0, 60_000)],
    operation: DiskOperation = "sync",
    broker: BrokerId = 1,
) -> FaultState:
    """Let each operation of a kind take so much longer, in real time."""
    return control.add(control.kit.disk.slow(ms, operation=operation, broker=broker))


@operation("POST", "/disk/lose-unsynced")
def disk_lose_unsynced(control: Control, *, broker: BrokerId = 1) -> FaultState:
    """Cut the power of a broker, and start it again without what was not synced; the count is of files that differ."""
    return control.add(control.kit.disk.lose_unsynced(broker))


@operation("POST", "/disk/flip-bit")
def disk_flip_bit(
    control: Control,
    *,
    topic: TopicName,
    partition: Index = 0,
    offset: int = 0,
    broker: Annotated[int | None, "its node id; the leader without it"] = None,
) -> FaultState:
    """Change one bit of the batch with an offset, until the fault is removed."""
    return control.add(control.kit.disk.flip_bit(topic, partition, offset, broker=broker))


# ---- What the faults have done


@operation("GET", "/faults")
def faults(control: Control) -> list[FaultState]:
    """Return all faults that were not removed, also those that are over."""
    return control.faults()


@operation("DELETE", "/faults")
def clear_faults(control: Control) -> Done:
    """Remove all faults."""
    control.clear()
    return Done()


@operation("GET", "/faults/{id}")
async def fault(
    control: Control,
    *,
    id: int,  # noqa: A002 - the name in the path
    count: Annotated[int, "return when it has happened so often", Limits(0, 1 << 31)] = 0,
    timeout_s: Annotated[float, "for how long to wait for that", Limits(0, 300)] = 10,
) -> FaultState:
    """Return how often a fault has happened."""
    ends_at = asyncio.get_running_loop().time() + timeout_s
    while control.state(id).count < count and control.fault(id).failure is None:
        if asyncio.get_running_loop().time() >= ends_at:
            raise ValueError(f"{control.fault(id).what} has happened {control.fault(id).count} times, not {count}")
        await asyncio.sleep(_POLL_S)
    return control.state(id)


@operation("DELETE", "/faults/{id}")
def remove_fault(control: Control, *, id: int) -> Done:  # noqa: A002 - the name in the path
    """Remove a fault."""
    control.remove(id)
    return Done()


# ---- Topics


@operation("GET", "/topics")
def topics(control: Control) -> Names:
    """Return the names of the topics, without Kafka's internal ones."""
    return Names(control.kit.topics())


@operation("POST", "/topics")
def create_topic(
    control: Control,
    *,
    name: TopicName,
    partitions: Annotated[int, Limits(1, 100_000)] = 1,
    replication_factor: Annotated[int | None, "3 at most by default", Limits(1, 100)] = None,
    configs: Annotated[dict[str, str], "settings by Kafka's names"] = {},  # noqa: B006 - it is not changed
) -> TopicState:
    """Create a topic; returns when all brokers know it."""
    control.kit.create_topic(name, partitions, replication_factor=replication_factor, configs=configs)
    return topic(control, topic=name)


@operation("GET", "/topics/{topic}")
def topic(control: Control, *, topic: TopicName) -> TopicState:
    """Return the replicas, offsets and settings of a topic."""
    found = control.kit.topic(topic)
    offsets = {str(partition): each for partition, each in found.offsets().items()}
    return TopicState(topic, list(found.partitions()), offsets, found.config)


@operation("GET", "/topics/{topic}/records")
def records(
    control: Control,
    *,
    topic: TopicName,
    partition: Annotated[int | None, "a partition; all without it"] = None,
    isolation: Isolation = "read_committed",
) -> RecordList:
    """Return the records of a topic that a consumer from the earliest offset would read."""
    read = control.kit.topic(topic).records(partition, isolation)
    return RecordList(
        [
            RecordState(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=[Header(*header) for header in record.headers],
            )
            for record in read
        ]
    )


@operation("POST", "/produce")
def produce(control: Control, *, topic: TopicName, records: list[NewRecord]) -> ProducedRecords:
    """Append records to a topic; returns where they are, once they are on all in-sync replicas."""
    made = [
        ProducerRecord(
            value=each.value,
            key=each.key,
            partition=each.partition,
            headers=[(header.key, header.value) for header in each.headers],
            timestamp_ms=each.timestamp_ms,
        )
        for each in records
    ]
    return ProducedRecords(list(control.kit.produce_many(topic, made)))


# ---- Groups and transactions


@operation("GET", "/groups")
def groups(control: Control) -> Names:
    """Return the ids of all groups."""
    return Names(control.kit.groups())


@operation("GET", "/groups/{group}")
def group(control: Control, *, group: str) -> GroupState:
    """Return a group: its members, offsets, lag, and what a share group has in flight."""
    return _group_state(control, group)


def _group_state(control: Control, group: str) -> GroupState:
    kit_group = control.kit.group(group)
    described = kit_group.describe()
    return GroupState(
        group_id=group,
        type=described.type,
        state=described.state,
        members=list(described.members),
        partitions=list(described.partitions),
        lag=described.lag if described.partitions else None,
        deliveries=list(kit_group.deliveries()) if described.type == GroupType.SHARE else [],
    )


@operation("POST", "/groups/{group}/commit")
def commit(control: Control, *, group: str, offsets: list[Committed]) -> GroupState:
    """Commit offsets of a group that has no members: it goes on there, or begins."""
    control.kit.group(group).commit({(committed.topic, committed.partition): committed.offset for committed in offsets})
    return _group_state(control, group)


@operation("GET", "/transactions")
def transactions(control: Control) -> Transactions:
    """Return all transactional ids with their last transactions."""
    return Transactions(list(control.kit.transactions()))


@operation("GET", "/log")
def log(control: Control) -> Log:
    """Return the last lines of the brokers' log."""
    return Log(control.kit.log)
