"""Drives the state machine of one transactional id: the test owns its time, its log, its markers and its answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_PRODUCER_EPOCH, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue
from ottla.transactions.events import (
    AbortTimedOut,
    AddPartitions,
    AllocateProducerId,
    EndTxn,
    Event,
    Expire,
    InitProducerId,
    MarkersSent,
    Output,
    Retry,
    RetryTimer,
    SendMarkers,
    TransactionAnswer,
    WriteMetadata,
    WriteTimedOut,
)
from ottla.transactions.machine import TransactionMachine
from ottla.transactions.metadata import TransactionMetadata, TransactionState, TransactionVersion
from ottla.transactions.records import TransactionRecord, decode, encode

ID = "app"
START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2
FIRST_ID = 4000
WEB_0, WEB_1, OFFSETS_3 = TopicPartition("web", 0), TopicPartition("web", 1), TopicPartition("__consumer_offsets", 3)


def new_metadata(producer_id: int = FIRST_ID) -> TransactionMetadata:
    """The state of an id that was never initialized."""
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=TransactionState.EMPTY,
        updated_wall_ms=START_MS,
    )


def replay(log: Iterable[KeyValue]) -> TransactionMachine | None:
    """The machine that a coordinator has after it has loaded this log; None if the id is deleted."""
    machine: TransactionMachine | None = None
    for key, value in log:
        record = decode(key, value)
        assert record is not None
        if record.metadata is None:
            machine = None
        elif machine is None:
            machine = TransactionMachine(record.metadata)
        else:
            machine.apply(record.metadata)
    return machine


@dataclass
class TransactionDriver:
    """Feeds a machine and remembers every answer by its ticket. Writes and markers are held back until `settle`.

    After every step the state is that of the log, when it is replayed.
    """

    machine: TransactionMachine = field(default_factory=lambda: TransactionMachine(new_metadata()))
    now_ms: int = START_MS
    answers: dict[int, TransactionAnswer] = field(default_factory=dict)
    log: list[KeyValue] = field(default_factory=list)  # durable
    storing: list[WriteMetadata] = field(default_factory=list)
    sending: list[SendMarkers] = field(default_factory=list)
    sent: list[SendMarkers] = field(default_factory=list)  # written to all their partitions
    retries: int = 0
    removed: bool = False
    next_id: int = FIRST_ID + 1
    tickets: count[int] = field(default_factory=count)

    def feed(self, event: Event, ticket: int = NO_TICKET) -> None:
        outputs = self.machine.step(event, now_ms=self.now_ms, ticket=ticket)
        self.check()
        for output in outputs:
            self._perform(output)

    def check(self) -> None:
        """The state of an id that was written is that of its log."""
        if self.log:
            replayed = replay(self.log)
            durable = None if replayed is None else replayed.metadata
            assert durable == (None if self.removed else self.machine.metadata), "a restart would change the state"

    def ask(self, event: Event) -> int:
        ticket = next(self.tickets)
        self.feed(event, ticket)
        return ticket

    def call(self, event: Event) -> TransactionAnswer:
        """Ask, let everything settle, and return the answer."""
        ticket = self.ask(event)
        self.settle()
        return self.answers[ticket]

    def _perform(self, output: Output) -> None:
        match output:
            case Reply(ticket, answer):
                assert ticket not in self.answers, "answered twice"
                self.answers[ticket] = answer
            case WriteMetadata():
                self.storing.append(output)
            case SendMarkers():
                self.sending.append(output)
            case Retry():
                self.retries += 1
            case AllocateProducerId(event, ticket):
                self.next_id += 1
                self.feed(replace(event, new_producer_id=self.next_id - 1), ticket)

    # ---- The log and the partitions

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The oldest write becomes durable, or fails."""
        write = self.storing.pop(0)
        if error is not ErrorCode.NONE:
            self.feed(NotStored(write.write, error))
            return
        self.append(write.metadata)
        if not self.removed:
            self.feed(Stored(write.write))

    def append(self, metadata: TransactionMetadata | None) -> None:
        """A record gets into the log, and changes the state."""
        self.log.append(encode(TransactionRecord(ID, metadata)))
        if metadata is None:
            self.removed = True
        else:
            self.machine.apply(metadata)
        self.check()

    def time_out(self) -> None:
        """The oldest write takes too long; it goes on."""
        self.feed(WriteTimedOut(self.storing[0].write))

    def write_markers(self, **errors: ErrorCode) -> None:
        """The oldest markers are written; `errors` by topic."""
        markers = self.sending.pop(0)
        results = {where: errors.get(where.topic, ErrorCode.NONE) for where in markers.partitions}
        if not any(results.values()):
            self.sent.append(markers)
        self.feed(MarkersSent(results))

    def retry(self) -> None:
        self.retries -= 1
        self.feed(RetryTimer())

    def settle(self) -> None:
        """Let everything succeed that is in progress."""
        while self.storing or self.sending or self.retries:
            if self.storing:
                self.store()
            elif self.sending:
                self.write_markers()
            else:
                self.retry()

    def reload(self) -> TransactionDriver:
        """Another coordinator loads what is durable, through the format of the log."""
        machine = replay(self.log)
        assert machine is not None
        other = TransactionDriver(machine, now_ms=self.now_ms, log=[*self.log], next_id=self.next_id)
        other.feed(Loaded())
        return other

    # ---- Requests

    def init(self, expected: tuple[int, int] | None = None) -> TransactionAnswer:
        return self.call(
            InitProducerId(timeout_ms=TIMEOUT_MS, expected=None if expected is None else ProducerIdAndEpoch(*expected))
        )

    def adding(
        self, epoch: int, *partitions: TopicPartition, producer_id: int = FIRST_ID, version: TransactionVersion = TV_2
    ) -> AddPartitions:
        return AddPartitions(
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=frozenset(partitions or (WEB_0,)),
            client_version=version,
        )

    def add(self, epoch: int, *partitions: TopicPartition, producer_id: int = FIRST_ID) -> ErrorCode:
        return self.call(self.adding(epoch, *partitions, producer_id=producer_id)).error

    def ending(
        self, epoch: int, *, committed: bool, version: TransactionVersion = TV_2, producer_id: int = FIRST_ID
    ) -> EndTxn:
        return EndTxn(producer_id=producer_id, producer_epoch=epoch, committed=committed, client_version=version)

    def commit(self, epoch: int, version: TransactionVersion = TV_2, producer_id: int = FIRST_ID) -> TransactionAnswer:
        return self.call(self.ending(epoch, committed=True, version=version, producer_id=producer_id))

    def abort(self, epoch: int, version: TransactionVersion = TV_2, producer_id: int = FIRST_ID) -> TransactionAnswer:
        return self.call(self.ending(epoch, committed=False, version=version, producer_id=producer_id))

    def check_timeout(self) -> None:
        self.feed(AbortTimedOut())

    def expire(self, after_ms: int) -> None:
        self.feed(Expire(after_ms))

    @property
    def state(self) -> TransactionState:
        return self.machine.metadata.state

    @property
    def epoch(self) -> int:
        return self.machine.metadata.producer_epoch
