"""Errors in responses are counted for every API, and those that a client should know are events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.broker.request_errors import ELEMENTS_MAX, RequestErrors, error_places
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.core.error_codes import ErrorCode
from ottla.testing import Kafka, kafka
from ottla.wire.apis import ApiKey
from ottla.wire.generated.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)


@pytest.mark.parametrize("key", sorted({*APIS, *INTER_BROKER_APIS}), ids=lambda key: ApiKey(key).name)
def test_the_places_of_errors_are_found_in_the_response_of_every_api(key: int) -> None:
    places = error_places(ApiKey(key))
    assert places.code or places.arrays


def test_each_error_of_a_response_is_counted_and_one_with_its_topic_is_an_event() -> None:
    with kafka(topics={"orders": 3}) as k:
        admin = AdminClient({"bootstrap.servers": k.bootstrap, "client.id": "billing"})
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("orders", 3)])["orders"].result(20)
        (event,) = _events(k)
        assert event["error"] == "TOPIC_ALREADY_EXISTS"
        assert (event["client"], event["topic"], event["api"]) == ("billing", "orders", "CreateTopics")
        assert event["cause"].startswith("CreateTopics: ")
        assert _counts(k)[ApiKey.CREATE_TOPICS, ErrorCode.TOPIC_ALREADY_EXISTS] == 1


def test_the_errors_of_partitions_are_counted_up_to_a_number_of_elements() -> None:
    errors = RequestErrors()
    refused = ListOffsetsPartitionResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partitions = [refused] * (2 * ELEMENTS_MAX)
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=partitions)])
    errors.look_at(ApiKey.LIST_OFFSETS, error_places(ApiKey.LIST_OFFSETS), answer, "billing")
    (count,) = errors.counts.values()
    assert ELEMENTS_MAX - 2 <= count <= ELEMENTS_MAX


def _events(k: Kafka) -> list[dict[str, Any]]:
    async def read(cluster: Any) -> list[str]:
        return [broker.services.events.json(kinds=["refused-request"]) for broker in cluster.brokers.values()]

    return [event for text in k._call(read) for event in json.loads(text)["events"]]


def _counts(k: Kafka) -> dict[tuple[int, int], int]:
    async def read(cluster: Any) -> dict[tuple[int, int], int]:
        return dict(cluster.brokers[1].services.request_errors.counts)

    return dict(k._call(read))
