"""The machine of a share group: members, epochs, assignments, share states, writes; and its records."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import Heartbeat, Leave, Leaver
from ottla.groups.machine import AppendRecords, Commit, Now, PlainAnswer, SessionTimer, SetTimer, TimerFired
from ottla.groups.modern.events import HeartbeatAnswer, TopicsChanged
from ottla.groups.modern.topics import TopicsImage
from ottla.groups.records import MalformedOffsetsRecord
from ottla.groups.share.events import OffsetsAltered, ShareHeartbeat, StatesDeleted, StatesInitialized
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.machine import ShareMachine
from ottla.groups.share.records import ShareRecordType, decode, is_share_group
from ottla.groups.share.settings import ShareSettings
from ottla.internal_topics.machine_events import Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from tests.support.replayed import compacted, replay_share_group, undurable


def topic(name: str, topic_id: uuid.UUID, partitions: int) -> TopicView:
    return TopicView(name, topic_id, tuple(PartitionView(i, 1, 0, (1,), (1,), 0) for i in range(partitions)), {}, 0, 0)


WEB, APP = uuid.UUID(int=7), uuid.UUID(int=8)
VIEW = ClusterView().with_topics({"web": topic("web", WEB, 3), "app": topic("app", APP, 1)})


class Driver:
    """Feeds the machine, and writes what it stores at once unless `failing` is set."""

    def __init__(self, settings: ShareSettings | None = None) -> None:
        self.settings = settings or ShareSettings(assignment_interval_ms=0, max_size=3)
        self.machine = ShareMachine(ShareGroup("team"), self.settings, TopicsImage(VIEW))
        self.now_ms, self.tickets = 1_000, 0
        self.answers: dict[int, Any] = {}
        self.log: list[KeyValue] = []
        self.failing = ErrorCode.NONE

    def feed(self, event: Any, ticket: int = -1) -> None:
        now = Now(self.now_ms, 1_700_000_000_000 + self.now_ms)
        outputs = self.machine.step(event, now=now, ticket=ticket)
        log = [*self.log, *undurable(self.machine)]
        for replayed in (log, compacted(log)):
            assert replay_share_group(ShareGroup("team"), replayed) == self.machine.group, "the records say otherwise"
        for output in outputs:
            match output:
                case Reply(answered, answer):
                    assert answered not in self.answers
                    self.answers[answered] = answer
                case AppendRecords(write, records):
                    if self.failing is ErrorCode.NONE:
                        self.log += records
                        self.feed(Stored(write))
                    else:
                        self.feed(NotStored(write, self.failing))
                case _:
                    pass

    def ask(self, event: Any) -> Any:
        self.tickets += 1
        self.feed(event, self.tickets)
        return self.answers[self.tickets]

    def beat(self, name: str, epoch: int, *topics: str) -> HeartbeatAnswer:
        chosen = frozenset(topics) if topics else None
        answer = self.ask(ShareHeartbeat(member_id=name, member_epoch=epoch, topics=chosen, client_id="c"))
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def initialize(self, *names: str) -> None:
        self.feed(StatesInitialized(self.machine.uninitialized(names)))

    def restart(self) -> ShareGroup:
        assert all(is_share_group(key) for key, _ in self.log)
        group = replay_share_group(ShareGroup("team"), self.log)
        assert group.is_in_log
        return group


def test_a_member_joins_and_gets_all_partitions_with_a_share_state() -> None:
    driver = Driver()
    assert driver.machine.uninitialized({"web", "absent"}) == {WEB: frozenset({0, 1, 2})}
    driver.initialize("web")
    answer = driver.beat("ada", 0, "web")
    assert (answer.error, answer.member_epoch, answer.assignment) == (ErrorCode.NONE, 2, {WEB: frozenset({0, 1, 2})})
    assert answer.heartbeat_interval_ms == 5_000
    assert driver.beat("ada", 2).assignment is None, "nothing changed"


def test_partitions_without_a_share_state_are_given_when_they_have_one() -> None:
    driver = Driver()
    assert driver.beat("ada", 0, "web").assignment == {}
    driver.initialize("web")
    assert driver.beat("ada", 2).assignment == {WEB: frozenset({0, 1, 2})}


def test_several_members_share_a_partition() -> None:
    driver = Driver()
    driver.initialize("app")
    for name in ("ada", "bob", "cyd"):
        assert driver.beat(name, 0, "app").assignment == {APP: frozenset({0})}
    assert driver.beat("dan", 0, "app").error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_partitions_are_divided_among_fewer_members() -> None:
    driver = Driver()
    driver.initialize("web")
    epoch = driver.beat("ada", 0, "web").member_epoch
    bob = driver.beat("bob", 0, "web")
    ada = driver.beat("ada", epoch)
    assert ada.assignment is not None
    assert bob.assignment is not None
    assert ada.assignment[WEB] | bob.assignment[WEB] == {0, 1, 2}
    assert not ada.assignment[WEB] & bob.assignment[WEB]


@pytest.mark.parametrize(
    ("epoch", "error"), [(2, ErrorCode.NONE), (3, ErrorCode.NONE), (4, ErrorCode.FENCED_MEMBER_EPOCH)]
)
def test_the_current_and_the_previous_epoch_are_accepted(epoch: int, error: ErrorCode) -> None:
    driver = Driver()
    driver.initialize("web", "app")
    driver.beat("ada", 0, "web")
    assert driver.beat("ada", 2, "app").member_epoch == 3
    assert driver.beat("ada", epoch).error is error


def test_unknown_members_are_refused() -> None:
    driver = Driver()
    assert driver.beat("ada", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat("ada", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_leaves_or_its_session_expires() -> None:
    driver = Driver()
    driver.initialize("app")
    driver.beat("ada", 0, "app")
    driver.beat("bob", 0, "app")
    assert driver.beat("ada", -1).member_epoch == -1
    driver.now_ms += driver.settings.session_timeout_ms
    driver.feed(TimerFired(SessionTimer("bob")))
    assert driver.machine.group.summary.state == "Empty"
    assert driver.restart().members == {}


def test_a_change_of_a_topic_reaches_members_with_their_next_heartbeat() -> None:
    driver = Driver()
    driver.initialize("app")
    epoch = driver.beat("ada", 0, "app").member_epoch
    driver.machine.topics = TopicsImage(VIEW.with_topics({"web": topic("web", WEB, 3), "app": topic("app", APP, 2)}))
    driver.feed(TopicsChanged(frozenset({"app"})))
    driver.initialize("app")
    answer = driver.beat("ada", epoch)
    assert (answer.member_epoch, answer.assignment) == (epoch + 1, {APP: frozenset({0, 1})})
    driver.machine.topics = TopicsImage(ClusterView().with_topics({"web": topic("web", WEB, 3)}))
    driver.feed(TopicsChanged(frozenset({"app"})))
    assert driver.beat("ada", epoch + 1).assignment == {}
    assert driver.restart().initialized == {}


def test_a_failed_write_fails_its_request_and_is_written_with_the_next() -> None:
    driver = Driver()
    driver.initialize("app")
    driver.failing = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.beat("ada", 0, "app").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.failing = ErrorCode.NONE
    assert driver.beat("ada", 0, "app").error is ErrorCode.NONE
    assert driver.restart().members == driver.machine.group.members


def test_a_member_that_leaves_while_writes_fail_is_deleted_last() -> None:
    """Apache Kafka loads no group in whose log a member is deleted before its assignment and its target are."""
    driver = Driver()
    driver.initialize("app", "web")
    epoch = driver.beat("ada", 0, "app").member_epoch
    driver.failing, written = ErrorCode.COORDINATOR_NOT_AVAILABLE, len(driver.log)
    driver.beat("ada", epoch, "web")
    driver.beat("ada", -1)
    driver.failing = ErrorCode.NONE
    driver.beat("bob", 0, "app")
    last = {decode(key, value)[0].kind: value for key, value in driver.log[written:] if b"ada" in key}
    kinds = [decode(key, value)[0].kind for key, value in driver.log[written:] if b"ada" in key and value is None]
    assert set(last.values()) == {None}
    assert kinds[-1] is ShareRecordType.MEMBER_METADATA


def test_a_group_is_deleted_only_without_members_and_its_tombstones_cover_it() -> None:
    driver = Driver()
    driver.initialize("app")
    driver.beat("ada", 0, "app")
    assert driver.machine.begin_deletion() is ErrorCode.NON_EMPTY_GROUP
    driver.beat("ada", -1)
    assert driver.machine.begin_deletion() is ErrorCode.NONE
    assert driver.beat("bob", 0, "app").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    keys = {key for key, value in dict(driver.log).items() if value is not None}
    assert keys == {key for key, _ in driver.machine.group.tombstones()}


def test_requests_for_other_types_of_groups_get_kafkas_errors() -> None:
    driver = Driver()
    assert driver.ask(Commit(member_id="", generation=-1)) == PlainAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
    assert driver.ask(Heartbeat(member_id="m", generation=1)) == PlainAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
    left = driver.ask(Leave((Leaver(member_id="m"),)))
    assert left.errors == (ErrorCode.UNKNOWN_MEMBER_ID,)


def test_altering_offsets_increases_the_epoch_and_deleting_them_forgets_the_states() -> None:
    driver = Driver()
    driver.initialize("app", "web")
    driver.beat("ada", 0, "web")
    driver.beat("ada", -1)
    epoch = driver.machine.group.epoch
    assert driver.ask(OffsetsAltered()) == PlainAnswer()
    assert driver.machine.group.epoch == epoch + 1
    assert driver.ask(StatesDeleted(frozenset({APP}))) == PlainAnswer()
    assert driver.restart().initialized == {WEB: frozenset({0, 1, 2})}


def test_altering_offsets_creates_a_group_that_was_never_used() -> None:
    driver = Driver()
    before = driver.machine.group.is_unused
    assert driver.ask(OffsetsAltered()) == PlainAnswer()
    assert (before, driver.machine.group.is_unused) == (True, False)
    assert (driver.restart().epoch, driver.restart().target_epoch) == (1, 1)
    driver.initialize("web")
    assert driver.beat("ada", 0, "web").member_epoch == 2, "as the first member of any group"


def test_a_member_has_no_partition_of_a_topic_that_it_left_though_the_target_is_older() -> None:
    driver = Driver(ShareSettings(assignment_interval_ms=60_000))
    driver.initialize("web", "app")
    epoch = driver.beat("ada", 0, "web").member_epoch
    left = driver.beat("ada", epoch, "app")
    assert (left.member_epoch, left.assignment) == (epoch, {})
    assert driver.restart().members["ada"].assigned == {}
    assert driver.beat("ada", epoch, "web").assignment == {WEB: frozenset({0, 1, 2})}
    assert driver.beat("ada", epoch).assignment is None


def test_a_heartbeat_that_names_the_topics_is_answered_with_the_assignment() -> None:
    driver = Driver()
    driver.initialize("web")
    epoch = driver.beat("ada", 0, "web").member_epoch
    assert driver.beat("ada", epoch, "web").assignment == {WEB: frozenset({0, 1, 2})}


@pytest.mark.parametrize("seed", range(100))
def test_random_histories_are_loaded_as_they_were(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(ShareSettings(assignment_interval_ms=rng.choice((0, 1_000)), max_size=4))
    epochs: dict[str, int] = {}
    for _ in range(60):
        driver.now_ms += rng.randrange(800)
        driver.failing = ErrorCode.COORDINATOR_NOT_AVAILABLE if rng.random() < 0.1 else ErrorCode.NONE
        name = rng.choice(("ada", "bob", "cyd", "dan", "eve"))
        action = rng.random()
        if action < 0.2:
            driver.initialize(rng.choice(("web", "app")))
        elif action < 0.3:
            driver.beat(name, -1)
            epochs.pop(name, None)
        else:
            topics = rng.sample(("web", "app"), rng.randrange(1, 3)) if name not in epochs or rng.random() < 0.2 else ()
            answer = driver.beat(name, epochs.get(name, 0), *topics)
            if answer.error is ErrorCode.NONE:
                epochs[name] = answer.member_epoch
            elif answer.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                epochs.pop(name, None)
    driver.failing = ErrorCode.NONE
    driver.beat("zoe", -1)
    group, found = driver.machine.group, driver.restart() if driver.machine.group.is_in_log else ShareGroup("team")
    assert found == group or not group.is_in_log
    outputs = ShareMachine(found, driver.settings, TopicsImage(VIEW)).step(Loaded(), now=Now(1, 1))
    assert sum(isinstance(output, SetTimer) for output in outputs) == len(found.members)


@pytest.mark.parametrize("cut", range(1, 8))
def test_cut_records_are_malformed(cut: int) -> None:
    driver = Driver()
    driver.initialize("app")
    driver.beat("ada", 0, "app")
    for key, value in driver.log:
        if value is not None:
            with pytest.raises(MalformedOffsetsRecord):
                decode(key, value[:-cut])
