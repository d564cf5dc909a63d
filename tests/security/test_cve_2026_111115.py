"""CVE-2026-111115: sections of tagged fields that announce, or have, very many of them made the broker allocate memory."""

from __future__ import annotations

import pytest

from ottla.broker.requests.registry import APIS
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import TAGS_MAX
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header, parse_request_header
from tests.security.test_cve_2026_111108 import FILLER, MIB, refused
from tests.support.largest_counts import Place, body, count, decoders, places

LARGEST = (1 << 32) - 1
UNKNOWN_TAG = b"\xa8\x46\0"  # 9000, with nothing in it
KNOWN_AND_EMPTY = b"\0\0"


@pytest.mark.parametrize("key", APIS.keys(), ids=lambda key: key.name.lower())
def test_the_tagged_fields_of_each_struct_of_each_version_are_bounded(key: ApiKey) -> None:
    for place in places(key, tags=True):
        for decode in decoders(key):
            for tags in (UNKNOWN_TAG * (TAGS_MAX + 1), FILLER):
                for number in (TAGS_MAX + 1, LARGEST):
                    refused(decode, place, body(place, count(place, number) + tags), match="tagged fields")


def test_the_tagged_fields_of_a_header_are_bounded() -> None:
    header = encode_request_header(ApiKey.METADATA, 12, 7, "large")
    assert header[-1] == 0
    place = Place(ApiKey.METADATA, 12, (), is_tags=True)
    parse_request_header(header[:-1] + count(place, 1) + UNKNOWN_TAG)
    for number in (TAGS_MAX + 1, LARGEST):
        with pytest.raises(MalformedRequest, match="tagged fields"):
            parse_request_header(header[:-1] + count(place, number) + UNKNOWN_TAG * (TAGS_MAX + 1))


def test_what_is_in_tagged_fields_that_are_not_known_is_not_kept() -> None:
    data = bytes(4 * MIB)
    size = b"\x80\x80\x80\x02"
    place = Place(ApiKey.METADATA, 12, (), is_tags=True)
    unknown = body(place, b"\x02" + (b"\xa8\x46" + size + data) + b"\xa9\x46" + size + data[:-1])
    (in_slices, at_once) = decoders(ApiKey.METADATA)
    for decode in (in_slices, at_once):
        refused(decode, place, unknown, match="ends after the message")
