"""Traffic as records: the same row always has the same key."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa

from ottla.pipeline.publish import as_records

ROWS = pa.table(
    {
        "window_start": pa.array([datetime(2015, 5, 17, 10, 5, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC")),
        "status_class": ["2xx", "4xx"],
        "path_prefix": ["/blog", "/\N{SNOWMAN}|"],
        "requests": [3, 1],
        "errors": [0, 1],
        "bytes": [30, 0],
        "clients": [2, 1],
    }
)


def test_a_row_becomes_a_keyed_record_that_explains_itself() -> None:
    first, second = as_records(ROWS, 4)
    assert first.key == b"2015-05-17T10:05:00Z|2xx|/blog"
    assert json.loads(first.value) == {
        "window_start": "2015-05-17T10:05:00Z",
        "status_class": "2xx",
        "path_prefix": "/blog",
        "requests": 3,
        "errors": 0,
        "bytes": 30,
        "clients": 2,
    }
    assert second.key == "2015-05-17T10:05:00Z|4xx|/\N{SNOWMAN}|".encode()


def test_publishing_again_sends_the_same_keys_to_the_same_partitions() -> None:
    assert list(as_records(ROWS, 4)) == list(as_records(ROWS, 4))
