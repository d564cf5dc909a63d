"""An injected error can be decoded by a client of every API in every version, and says what it is about."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ottla.broker.requests.registry import Api
from ottla.core.error_codes import ErrorCode
from ottla.testing.kit.faults.elements import Level, TopicKey, elements_of, merge, split
from ottla.testing.kit.faults.fault import selection_of
from ottla.testing.kit.faults.names import api_named, error_named, name_of
from ottla.testing.kit.faults.responses import error_response, errors_in, response_of
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from tests.support.requests_of_apis import ROWS, TOPICS, each_version, each_with_topics, named, request_of

ERRORS = [error for error in ErrorCode if error is not ErrorCode.NONE]


def _round_trip(key: ApiKey, version: int, response: Any) -> Any:
    return codec.decode_response(key, version, codec.encode_response(key, version, response))


@each_version
def test_a_whole_request_that_fails_has_its_error_in_the_response(row: Api, version: int) -> None:
    request = request_of(row.key, version)
    for error in ERRORS:
        response = error_response(row.key, version, request, error, is_whole=True)
        assert response is not None
        assert errors_in(_round_trip(row.key, version, response)) == [error]


@each_version
def test_a_request_for_nothing_that_fails_can_be_decoded(row: Api, version: int) -> None:
    request = codec.shape_class(row.key, "Request")()
    for error in ERRORS:
        response = error_response(row.key, version, request, error, is_whole=True)
        if response is not None:
            assert errors_in(_round_trip(row.key, version, response)) == [error]


def _selects(topic: TopicKey, partition: int) -> bool:
    is_of_topic = topic.name == "orders" or topic.topic_id == TOPICS["orders"]
    return is_of_topic and partition in (-1, 1)


@each_with_topics
def test_one_partition_fails_alone(row: Api, version: int) -> None:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elements = elements_of(row.key, version)
    assert elements is not None
    request = request_of(row.key, version)
    hit, rest = split(elements.level, request, _selects)
    assert hit is not None and rest is not None
    for part in (hit, rest):
        codec.encode_request(row.key, version, part)
    assert request == request_of(row.key, version), "the request itself is unchanged"

    failed = error_response(row.key, version, hit, error, is_whole=False)
    served = error_response(row.key, version, rest, ErrorCode.NONE, is_whole=False)
    everything = error_response(row.key, version, request, ErrorCode.NONE, is_whole=False)
    assert failed is not None and served is not None and everything is not None
    merged = copy.deepcopy(served)
    merge(elements.level, merged, failed)
    assert errors_in(_round_trip(row.key, version, merged)) == [error]
    assert _count(elements.level, merged) == _count(elements.level, everything)
    assert _count(elements.level, served) < _count(elements.level, everything)


def _count(level: Level, holder: Any) -> int:
    """Count the answers to the innermost elements."""
    if level.answers is None:
        assert level.below is not None
        return _count(level.below, holder)
    answers = getattr(holder, level.answers)
    return len(answers) if level.below is None else sum(_count(level.below, answer) for answer in answers)


@each_with_topics
def test_an_answer_that_comes_again_replaces_the_first(row: Api, version: int) -> None:
    elements = elements_of(row.key, version)
    assert elements is not None
    request = request_of(row.key, version)
    served = error_response(row.key, version, request, ErrorCode.NONE, is_whole=False)
    failed = error_response(row.key, version, request, ErrorCode.UNKNOWN_SERVER_ERROR, is_whole=False)
    before = _count(elements.level, served)
    merge(elements.level, served, failed)
    assert errors_in(served) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert _count(elements.level, served) == before


def test_kafkas_values_stand_in_errors() -> None:
    produce = error_response(
        ApiKey.PRODUCE, 9, request_of(ApiKey.PRODUCE, 9), ErrorCode.NOT_LEADER_OR_FOLLOWER, is_whole=True
    )
    assert produce is not None
    partition = produce.responses[0].partition_responses[0]
    assert (partition.base_offset, partition.log_append_time_ms, partition.log_start_offset) == (-1, -1, -1)
    fetch = error_response(ApiKey.FETCH, 13, request_of(ApiKey.FETCH, 13), ErrorCode.KAFKA_STORAGE_ERROR, is_whole=True)
    assert fetch is not None
    assert (fetch.error_code, fetch.responses[0].partitions[0].high_watermark) == (0, -1)
    session = error_response(
        ApiKey.FETCH, 13, request_of(ApiKey.FETCH, 13), ErrorCode.FETCH_SESSION_ID_NOT_FOUND, is_whole=True
    )
    assert session is not None
    assert (session.error_code, session.responses) == (70, [])


@pytest.mark.parametrize("name", ["Produce", "PRODUCE", "produce"])
def test_apis_have_kafkas_names(name: str) -> None:
    assert api_named(name) is ApiKey.PRODUCE


def test_a_wrong_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ValueError, match="no API 'Produse'; did you mean 'Produce'"):
        api_named("Produse")
    with pytest.raises(ValueError, match="no error 'NOT_LEADER'; did you mean 'NOT_LEADER_OR_FOLLOWER'"):
        error_named("NOT_LEADER")
    with pytest.raises(ValueError, match="no error 'NONE'"):
        error_named("NONE")
    with pytest.raises(
        ValueError, match="FindCoordinatorResponse v4 has no 'coordinator'; did you mean 'coordinators'"
    ):
        response_of(ApiKey.FIND_COORDINATOR, 4, {"coordinator": []})


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_topic_is_refused_where_none_can_fail(row: Api) -> None:
    elements = elements_of(row.key, row.max_version)
    if elements is not None and elements.level.has_topics:
        assert selection_of(name_of(row.key), topic="orders").topic == "orders"
    else:
        with pytest.raises(ValueError, match="no errors about single topics"):
            selection_of(name_of(row.key), topic="orders")


def test_a_partition_is_refused_where_only_topics_fail() -> None:
    with pytest.raises(ValueError, match="Metadata have no errors about single partitions"):
        selection_of("Metadata", topic="orders", partition=0)
    with pytest.raises(ValueError, match="needs an API"):
        selection_of(None, topic="orders")
