"""The leader-epoch cache against the plainest account of epochs: which began where, and nothing thrown away."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.storage.state.leader_epochs import EpochEnd, LeaderEpochs, parse_epochs
from tests.support.examples import examples


class EpochsAgainstOracle(RuleBasedStateMachine):
    """A log that grows, is cut at both ends and changes its leader; `begun` says where each epoch began."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.begun: dict[int, int] = {}
        self.start = self.end = 0

    @rule(more=st.integers(1, 9), ahead=st.integers(0, 3))
    def append(self, more: int, ahead: int) -> None:
        """Records of the newest epoch, or of one that begins with them."""
        epoch = max(self.begun, default=0) + ahead
        self._begin(epoch, self.end)
        self.end += more

    @rule(ahead=st.integers(-2, 3))
    def new_leader(self, ahead: int) -> None:
        """A term that may stay without records; one that is over changes nothing."""
        self._begin(max(max(self.begun, default=0) + ahead, 0), self.end)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self.end = data.draw(st.integers(self.start, self.end))
        gone = [epoch for epoch, start in self.begun.items() if start >= self.end]
        assert self.epochs.truncate_from_end(self.end) == bool(gone)
        for epoch in gone:
            del self.begun[epoch]

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.epochs.truncate_from_start(self.start)
        older = [epoch for epoch, start in self.begun.items() if start <= self.start]
        for epoch in older:
            if epoch != max(older):
                del self.begun[epoch]
            else:
                self.begun[epoch] = self.start

    @rule()
    def restart(self) -> None:
        read = parse_epochs(self.epochs.to_text())
        assert read is not None
        self.epochs = read

    @rule(data=st.data())
    def a_torn_file_is_no_file(self, data: st.DataObject) -> None:
        text = self.epochs.to_text()
        torn = text[: data.draw(st.integers(0, len(text) - 1))]
        assert parse_epochs(torn) is None

    def _begin(self, epoch: int, start: int) -> None:
        is_news = epoch > max(self.begun, default=-1)
        assert self.epochs.assign(epoch, start) == is_news
        if is_news:
            self.begun = {old: at for old, at in self.begun.items() if at < start} | {epoch: start}

    @invariant()
    def each_offset_has_its_epoch(self) -> None:
        for offset in range(self.start, self.end):
            expected = max((epoch for epoch, start in self.begun.items() if start <= offset), default=-1)
            assert self.epochs.epoch_of(offset) == expected

    @invariant()
    def each_epoch_ends_where_the_next_known_one_begins(self) -> None:
        newest = max(self.begun, default=-1)
        assert self.epochs.latest == newest
        for asked in range(-1, newest + 3):
            answer = self.epochs.end_offset(asked, log_end_offset=self.end)
            if asked == -1 or asked > newest:
                assert answer == EpochEnd(-1, -1)
                continue
            known = max((epoch for epoch in self.begun if epoch <= asked), default=None)
            later = [start for epoch, start in self.begun.items() if epoch > asked]
            assert answer == EpochEnd(asked if known is None else known, min(later, default=self.end))


TestEpochsAgainstOracle = EpochsAgainstOracle.TestCase
TestEpochsAgainstOracle.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
