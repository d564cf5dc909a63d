"""Long messages are read and written in slices of work, and the elements of a request are bounded before they are read."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Generator
from typing import Any

import pytest

from ottla.core.slices import SLICE_WORK, WorkSlice
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import ELEMENTS_MAX, TAGS_MAX
from ottla.wire.errors import AnswerTooLarge, MalformedRequest
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from ottla.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.support.messages import MESSAGE_APIS

METADATA_VERSION, OFFSET_FETCH_VERSION = 12, 5


class CountingSlice(WorkSlice):
    """Renews itself and remembers how much work each slice was."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[int] = []

    def renew(self) -> None:
        self.done.append(SLICE_WORK - self.left)
        super().renew()


def run(slices: Generator[None, None, Any], counting: CountingSlice) -> Any:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            counting.renew()
            return end.value
        counting.renew()


def decode(key: ApiKey, version: int, body: bytes) -> tuple[Any, CountingSlice]:
    counting = CountingSlice()
    return run(codec.decode_request_slices(key, version, body, slices=counting), counting), counting


def test_a_long_request_is_read_in_slices_of_bounded_work() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(number)) for number in range(20_000)])
    body = codec.encode_request(ApiKey.METADATA, METADATA_VERSION, request)

    decoded, counting = decode(ApiKey.METADATA, METADATA_VERSION, body)

    assert decoded == request
    assert sum(counting.done) == 20_000
    assert max(counting.done) <= SLICE_WORK


def test_the_elements_of_nested_arrays_are_counted_too() -> None:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=list(range(100))) for _ in range(100)]
    body = codec.encode_request(
        ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, OffsetFetchRequest(group_id="g", topics=topics)
    )

    decoded, counting = decode(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, body)

    assert decoded.topics == topics
    assert sum(counting.done) >= 100 * 101
    assert max(counting.done) <= SLICE_WORK + 20, "one element of a topic's own bytes more than the slice"


def test_long_strings_are_work_by_their_bytes() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="n" * 30_000) for _ in range(100)])
    body = codec.encode_request(ApiKey.METADATA, METADATA_VERSION, request)

    _, counting = decode(ApiKey.METADATA, METADATA_VERSION, body)

    assert len(counting.done) >= 100


def test_more_elements_than_the_limit_are_refused_before_any_is_read() -> None:
    body = struct.pack(">i", ELEMENTS_MAX + 1) + bytes(2 * ELEMENTS_MAX + 2)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match="elements"):
            decode(ApiKey.METADATA, 8, body)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_as_many_elements_as_the_limit_are_read() -> None:
    body = struct.pack(">i", ELEMENTS_MAX) + bytes(2 * ELEMENTS_MAX) + b"\0" * 3

    decoded, _ = decode(ApiKey.METADATA, 8, body)

    assert len(decoded.topics) == ELEMENTS_MAX


def test_the_elements_of_all_arrays_together_are_limited() -> None:
    half = ELEMENTS_MAX // 2
    topic = b"\0\0" + struct.pack(">i", half) + bytes(4 * half)
    body = b"\0\1g" + struct.pack(">i", 2) + topic * 2

    with pytest.raises(MalformedRequest, match="elements"):
        decode(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, body)


def test_a_struct_with_more_tagged_fields_than_any_could_have_is_refused() -> None:
    count = bytes([TAGS_MAX % 128 + 1 | 0x80, TAGS_MAX // 128])
    body = b"\0\0\0" + count + bytes(2 * TAGS_MAX + 2)

    with pytest.raises(MalformedRequest, match="tagged fields"):
        codec.decode_request(ApiKey.METADATA, METADATA_VERSION, body)


def test_a_long_answer_is_written_in_slices_of_bounded_work() -> None:
    answer = MetadataResponse(topics=[MetadataResponseTopic(name=str(number)) for number in range(5_000)])
    counting = CountingSlice()

    written = run(codec.encode_response_slices(ApiKey.METADATA, METADATA_VERSION, answer, slices=counting), counting)

    assert written == codec.encode_response(ApiKey.METADATA, METADATA_VERSION, answer)
    assert len(counting.done) > 5_000 // SLICE_WORK
    assert max(counting.done) <= SLICE_WORK + 2


def test_an_answer_that_clients_do_not_read_is_not_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.wire.compiled_codec.ANSWER_BYTES_MAX", 10_000)
    answer = MetadataResponse(topics=[MetadataResponseTopic(name="t" * 100) for _ in range(1_000)])
    counting = CountingSlice()

    with pytest.raises(AnswerTooLarge):
        run(codec.encode_response_slices(ApiKey.METADATA, METADATA_VERSION, answer, slices=counting), counting)


@pytest.mark.parametrize("key", MESSAGE_APIS.keys() - {ApiKey.PRODUCE, ApiKey.FETCH}, ids=lambda key: key.name.lower())
def test_no_array_of_a_request_is_in_a_tagged_field(key: ApiKey) -> None:
    """Tagged fields are read whole, not in slices."""

    def check(shape: Any) -> None:
        for field in shape.WIRE:
            assert field.tag is None or isinstance(field.type, str)
            assert field.tag is None or not field.array
            if not isinstance(field.type, str):
                check(field.type)

    check(codec.shape_class(key, "Request"))
