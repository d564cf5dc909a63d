"""The fetch session of a follower: what it has, its epochs, and which answers count."""

from __future__ import annotations

import pytest

from ottla.core.errors import NetworkException
from ottla.replication.fetch_session_handler import FetchSessionHandler
from ottla.replication.follower_state import FetchPosition
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_request
from ottla.wire.generated.fetch import FetchRequest
from ottla.wire.headers import parse_request_header
from ottla.wire.hot import replica_fetch
from ottla.wire.hot.replica_fetch import FetchRequestWriter

TOPIC = bytes(15) + b"\x01"
FIRST, SECOND = (TOPIC, 0), (TOPIC, 1)
EPOCH_MAX = (1 << 31) - 1


def position(offset: int) -> FetchPosition:
    return FetchPosition(0, offset, 0, 0, 0)


class Session:
    """A session and the writer of its requests."""

    def __init__(self) -> None:
        self.handler = FetchSessionHandler(1)
        self.handler.begin(9)
        self.writer = FetchRequestWriter("b", 2, max_wait_ms=500, min_bytes=1, max_bytes=1000)

    def send(self, now_s: float = 0.0) -> FetchRequest:
        """Send the next request; return it as the leader decodes it."""
        self.handler.write_forgotten(self.writer)
        body = bytes(self.handler.next_frame(self.writer, now_s))[4:]
        after_header = parse_request_header(memoryview(body))[4]
        request = decode_request(ApiKey.FETCH, replica_fetch.VERSION, body, after_header)
        assert isinstance(request, FetchRequest)
        return request


def test_the_second_request_of_a_session_waits_for_its_id_and_the_next_ones_are_pipelined() -> None:
    session = Session()
    handler = session.handler
    first = session.send()
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert first.replica_state.replica_epoch == 9
    assert (handler.awaits_answers, handler.is_full) == (True, False)
    assert handler.answered(1, 0.0) == 1
    handler.session_id = 7
    assert (handler.awaits_answers, handler.is_full) == (False, False)
    assert session.send().session_epoch == 1
    assert (handler.awaits_answers, handler.is_full) == (False, False)
    third = session.send()
    assert (third.session_id, third.session_epoch, handler.is_full) == (7, 2, True)


def test_after_the_largest_epoch_comes_one() -> None:
    session = Session()
    session.handler._epoch = EPOCH_MAX
    assert session.send().session_epoch == EPOCH_MAX
    assert session.send().session_epoch == 1


def test_an_answer_to_a_request_before_the_last_one_that_names_a_partition_does_not_count_for_it() -> None:
    session = Session()
    handler = session.handler
    handler.name(FIRST, position(0))
    handler.name(SECOND, position(5))
    session.send()
    handler.name(FIRST, position(3))
    session.send()
    assert handler.answered(1, 0.0) == 1
    assert handler.asked_position(FIRST, 1) is None
    assert handler.asked_position(SECOND, 1) == position(5)
    assert handler.answered(2, 0.0) == 2
    assert handler.asked_position(FIRST, 2) == position(3)


def test_a_partition_is_removed_from_the_session_once_and_not_if_it_is_named_again_before_the_next_request() -> None:
    session = Session()
    handler = session.handler
    for key in (FIRST, SECOND):
        handler.name(key, position(0))
    session.send()
    for key in (FIRST, SECOND):
        handler.remove(key)
        handler.remove(key)
    handler.remove((TOPIC, 2))  # is not in the session
    assert (len(handler), handler.position(FIRST)) == (0, None)
    handler.name(FIRST, position(1))
    (forgotten,) = session.send().forgotten_topics_data
    assert forgotten.partitions == [1]
    assert session.send().forgotten_topics_data == []
    assert handler.position(FIRST) == position(1)


def test_answers_to_the_requests_of_a_session_that_has_ended_do_not_count() -> None:
    session = Session()
    handler = session.handler
    handler.name(FIRST, position(0))
    session.send()
    handler.session_id = 7
    session.send()
    handler.remove(FIRST)
    handler.begin(10)
    assert (handler.session_id, len(handler), handler.broker_epoch) == (0, 0, 10)
    assert (handler.awaits_answers, handler.is_idle) == (True, False)
    assert handler.answered(1, 0.0) is None
    assert handler.answered(2, 0.0) is None
    assert (handler.awaits_answers, handler.is_idle) == (False, True)
    request = session.send()
    assert (request.session_epoch, request.forgotten_topics_data) == (0, [])
    assert handler.answered(3, 0.0) == 3


def test_a_request_is_overdue_if_it_was_the_oldest_for_too_long() -> None:
    session = Session()
    handler = session.handler
    assert not handler.is_overdue(100.0, 30.0)
    session.send(now_s=100.0)
    session.send(now_s=110.0)
    assert not handler.is_overdue(130.0, 30.0)
    assert handler.is_overdue(130.5, 30.0)
    handler.answered(1, 130.5)
    assert not handler.is_overdue(160.0, 30.0)
    assert handler.is_overdue(161.0, 30.0)


def test_an_answer_to_another_request_than_the_oldest_is_refused() -> None:
    session = Session()
    with pytest.raises(NetworkException, match="broker 1 answered request 1, which is not next"):
        session.handler.answered(1, 0.0)
    session.send()
    session.send()
    with pytest.raises(NetworkException):
        session.handler.answered(2, 0.0)
