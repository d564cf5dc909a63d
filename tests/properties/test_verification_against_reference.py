"""The verification of transactions, batch by batch, against a small reference of Kafka's rules (KIP-890)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.core.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.records.batch import BatchHeader
from ottla.storage.state.end_marker import Marker, MarkerType
from ottla.storage.state.producer_state_manager import BatchMetadata, ProducerStateManager, VerificationGuard
from tests.support.examples import examples
from tests.support.storage import marker

IDS = st.integers(1, 2)
EPOCHS = st.sampled_from([0, 0, 0, 1, -1])
NOW_MS = 1_000


@dataclass
class Reference:
    """What a partition should know of one producer."""

    epoch: int | None = None
    written: list[int] = field(default_factory=list)  # sequences of this epoch; each batch has one record
    opened_at: int | None = None
    current: int | None = None  # the number of the verification that counts
    lowest: tuple[int, int] = (0, 0)  # epoch and sequence
    bumps: bool = False
    coordinator_epoch: int = -1

    def verdict(self, epoch: int, sequence: int, verification: int | None) -> type[KafkaError] | str:
        if self.epoch == epoch and sequence in self.written[-5:]:
            return "duplicate"
        old = self.epoch is not None and epoch < self.epoch
        if self.opened_at is None or self.epoch != epoch:
            if old:
                return InvalidProducerEpoch
            if verification is None or verification != self.current:
                return InvalidTxnState
            if (self.bumps and sequence and not self.written) or sequence > self.lowest[1]:
                return OutOfOrderSequenceNumber
        if old:
            return InvalidProducerEpoch
        if self.epoch is None:
            return "appended"
        expected = self.written[-1] + 1 if self.epoch == epoch and self.written else 0
        return "appended" if sequence == expected else OutOfOrderSequenceNumber


class VerificationAgainstReference(RuleBasedStateMachine):
    """Sends batches with guards that are current, old or absent, and markers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = ProducerStateManager()
        self.known = {producer_id: Reference() for producer_id in (1, 2)}
        self.guards: list[tuple[int, VerificationGuard]] = []  # with the producer; the place is the number
        self.offset = 0

    @rule(producer_id=IDS, ahead=st.integers(0, 2), epoch=EPOCHS, bumps=st.booleans())
    def begin(self, producer_id: int, ahead: int, epoch: int, *, bumps: bool) -> None:
        known = self.known[producer_id]
        at = max((known.epoch or 0) + epoch, 0)
        sequence = ahead + (known.written[-1] + 1 if known.written and known.epoch == at else 0)
        if known.epoch is not None and at < known.epoch:
            with pytest.raises(InvalidProducerEpoch):
                self.producers.begin_verification(producer_id, sequence, at, supports_epoch_bump=bumps, now_ms=NOW_MS)
            return
        guard = self.producers.begin_verification(producer_id, sequence, at, supports_epoch_bump=bumps, now_ms=NOW_MS)
        if known.opened_at is not None and known.epoch == at:
            assert guard is None
            return
        assert guard is not None
        if known.current is None:
            known.current, known.lowest, known.bumps = len(self.guards), (at, sequence), bumps
            assert all(guard is not other for _, other in self.guards), "a guard is used for one verification"
            self.guards.append((producer_id, guard))
            return
        assert guard is self.guards[known.current][1]
        if at == known.lowest[0]:
            known.lowest = (at, min(sequence, known.lowest[1]))
        elif at > known.lowest[0]:
            known.lowest = (at, sequence)

    @rule(
        producer_id=IDS,
        which=st.sampled_from(["current", "current", "older", "none"]),
        step=st.sampled_from([0, 0, 0, 1, 2, -1]),
        epoch=EPOCHS,
    )
    def produce(self, producer_id: int, which: str, step: int, epoch: int) -> None:
        known = self.known[producer_id]
        at = max((known.epoch or 0) + epoch, 0)
        sequence = max((known.written[-1] + 1 if known.written and known.epoch == at else 0) + step, 0)
        number = known.current if which == "current" else None
        if which == "older" and self.guards:
            number = next((n for n, (owner, _) in enumerate(self.guards) if owner == producer_id), None)
        guard = None if number is None else self.guards[number][1]
        expected = known.verdict(at, sequence, number)
        assert self._verdict(producer_id, at, sequence, guard) == expected
        if expected != "appended":
            return
        written = BatchMetadata(sequence, sequence, self.offset, self.offset, NOW_MS)
        self.producers.append_data_batch(producer_id, at, written, transactional=True, now_ms=NOW_MS)
        if known.epoch != at:
            known.epoch, known.written = at, []
        known.written.append(sequence)
        known.opened_at = self.offset if known.opened_at is None else known.opened_at
        known.current = None
        self.offset += 1

    def _verdict(
        self, producer_id: int, epoch: int, sequence: int, guard: VerificationGuard | None
    ) -> type[KafkaError] | str:
        try:
            found = self.producers.check_data_batch(producer_id, epoch, sequence, 1, transactional=True, guard=guard)
        except KafkaError as error:
            return type(error)
        return "appended" if found is None else "duplicate"

    def _accepts_epoch(self, producer_id: int, epoch: int) -> bool:
        try:
            self.producers.check_epoch_bump(producer_id, epoch)
        except InvalidProducerEpoch:
            return False
        return True

    def _accepts_coordinator(self, producer_id: int, epoch: int, coordinator_epoch: int) -> bool:
        records = marker(producer_id, epoch, commit=False, coordinator_epoch=coordinator_epoch)
        try:
            self.producers.check_coordinator_batch(BatchHeader(records), records, None)
        except TransactionCoordinatorFenced:
            return False
        return True

    @rule(producer_id=IDS, bump=st.booleans(), second_version=st.booleans(), coordinator_epoch=st.integers(0, 2))
    def end(self, producer_id: int, *, bump: bool, second_version: bool, coordinator_epoch: int) -> None:
        known = self.known[producer_id]
        epoch = (known.epoch or 0) + bump
        if second_version:
            is_right = known.opened_at is None or epoch != known.epoch
            assert self._accepts_epoch(producer_id, epoch) == is_right
            if not is_right:
                return
        is_right = known.epoch is None or coordinator_epoch >= known.coordinator_epoch
        assert self._accepts_coordinator(producer_id, epoch, coordinator_epoch) == is_right
        if not is_right:
            return
        known.coordinator_epoch = coordinator_epoch
        abort = Marker(MarkerType.ABORT, coordinator_epoch)
        aborted = self.producers.append_end_marker(
            producer_id, epoch, abort, offset=self.offset, timestamp=NOW_MS, now_ms=NOW_MS
        )
        assert (None if aborted is None else aborted.first_offset) == known.opened_at
        self.offset += 1
        self.producers.high_watermark_updated(self.offset)
        if known.epoch != epoch:
            known.epoch, known.written = epoch, []
        known.opened_at = known.current = None

    @invariant()
    def readers_stop_at_the_oldest_open_transaction(self) -> None:
        opened = [known.opened_at for known in self.known.values() if known.opened_at is not None]
        assert self.producers.first_unstable_offset() == (min(opened) if opened else None)


TestVerificationAgainstReference = VerificationAgainstReference.TestCase
TestVerificationAgainstReference.settings = settings(max_examples=examples(60), stateful_step_count=40)
