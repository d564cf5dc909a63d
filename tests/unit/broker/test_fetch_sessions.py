import random
import uuid

import pytest

from ottla.broker.sessions.fetch_sessions import EVICT_AFTER_SECONDS, FetchSessions
from ottla.core.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.net.identity import USER, ConnectionIdentity
from ottla.wire.hot.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

TOPIC = uuid.UUID(int=7).bytes
ALICE, BOB = ConnectionIdentity(USER, "alice"), ConnectionIdentity(USER, "bob")


def request(
    session_id: int, epoch: int, *partitions: int, forget: tuple[int, ...] = (), offset: int = 0
) -> FetchRequest:
    made = FetchRequest()
    made.session_id, made.session_epoch = session_id, epoch
    if partitions:
        asked = [FetchPartition(partition=each, fetch_offset=offset) for each in partitions]
        made.topics.append(FetchTopic("", TOPIC, asked))
    if forget:
        made.forgotten_topics_data.append(ForgottenTopic("", TOPIC, list(forget)))
    return made


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots=slots, rng=random.Random(1))


def test_a_session_remembers_its_partitions_and_takes_changes() -> None:
    all_sessions = sessions()
    session, _ = all_sessions.resolve(request(0, 0, 0, 1, 2), ALICE, by_id=True, now=0)
    assert session is not None

    _, wanted = all_sessions.resolve(request(session.session_id, 1, 1, forget=(0,), offset=9), ALICE, by_id=True, now=1)

    assert [(each.asked.partition, each.asked.fetch_offset) for each in wanted] == [(1, 9), (2, 0)]


def test_a_full_fetch_without_a_session_keeps_nothing() -> None:
    all_sessions = sessions()

    session, wanted = all_sessions.resolve(request(0, -1, 0), ALICE, by_id=True, now=0)

    assert session is None
    assert len(wanted) == 1
    assert len(all_sessions) == 0


def test_there_are_no_sessions_without_slots() -> None:
    all_sessions = sessions(slots=0)

    session, wanted = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=0)

    assert session is None
    assert len(wanted) == 1
    assert len(all_sessions) == 0


def test_the_final_epoch_closes_the_session() -> None:
    all_sessions = sessions()
    session, _ = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=0)
    assert session is not None

    all_sessions.resolve(request(session.session_id, -1), ALICE, by_id=True, now=0)

    assert len(all_sessions) == 0


def test_an_unknown_session_and_a_wrong_epoch_have_different_errors() -> None:
    all_sessions = sessions()
    session, _ = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=0)
    assert session is not None

    with pytest.raises(FetchSessionIdNotFound):
        all_sessions.resolve(request(session.session_id + 1, 1), ALICE, by_id=True, now=0)
    with pytest.raises(InvalidFetchSessionEpoch):
        all_sessions.resolve(request(session.session_id, 2), ALICE, by_id=True, now=0)
    all_sessions.resolve(request(session.session_id, 1), ALICE, by_id=True, now=0)


def test_a_session_of_ids_cannot_go_on_with_names() -> None:
    all_sessions = sessions()
    session, _ = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=0)
    assert session is not None

    with pytest.raises(FetchSessionTopicIdError):
        all_sessions.resolve(request(session.session_id, 1), ALICE, by_id=False, now=0)


def test_sessions_are_bounded_and_only_stale_ones_give_way() -> None:
    all_sessions = sessions(slots=2)
    for now in (0, 1):
        all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=now)

    refused, wanted = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=2)
    accepted, _ = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=EVICT_AFTER_SECONDS + 0.5)

    assert refused is None
    assert wanted, "the fetch is served all the same"
    assert accepted is not None
    assert len(all_sessions) == 2


def test_partitions_that_had_data_wait_longest_for_their_next_turn() -> None:
    session, wanted = sessions().resolve(request(0, 0, 0, 1, 2), ALICE, by_id=True, now=0)
    assert session is not None

    session.rotate(list(wanted)[:1])

    assert [each.asked.partition for each in session.partitions.values()] == [1, 2, 0]


@pytest.mark.parametrize("epoch", [1, -1, 0])
def test_a_session_of_another_user_is_not_found_and_stays(epoch: int) -> None:
    all_sessions = sessions()
    session, _ = all_sessions.resolve(request(0, 0, 0), ALICE, by_id=True, now=0)
    assert session is not None

    if epoch > 0:
        with pytest.raises(FetchSessionIdNotFound):
            all_sessions.resolve(request(session.session_id, epoch), BOB, by_id=True, now=0)
    else:
        found, wanted = all_sessions.resolve(request(session.session_id, epoch), BOB, by_id=True, now=0)
        assert found is not session
        assert not wanted
    again = ConnectionIdentity(USER, "alice", ("a group of a newer token",))
    same, wanted = all_sessions.resolve(request(session.session_id, 1), again, by_id=True, now=0)

    assert same is session
    assert len(wanted) == 1
