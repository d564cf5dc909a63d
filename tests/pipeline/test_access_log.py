"""Lines of web servers, literal, with what must come out of them."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipeline.formats import access_log
from ottla.pipeline.formats.format import NO_VALUE

COMMON = b'203.0.113.9 - bob [17/May/2015:10:05:03 +0000] "GET /a/b?c=d HTTP/1.1" 200 512'
EXAMPLE = Path(__file__).parents[2] / "examples" / "access.log.gz"


def parsed(*lines: bytes | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = access_log.parse(pa.array(lines, pa.binary())).to_pylist()
    return rows


def fields(line: bytes) -> dict[str, Any]:
    (row,) = parsed(line)
    assert row.pop("reason") is None
    return row


def reason(line: bytes | None) -> str:
    (row,) = parsed(line)
    reason = row.pop("reason")
    assert set(row.values()) == {None}
    return str(reason)


def test_a_common_line_gives_all_its_fields() -> None:
    assert fields(COMMON) == {
        "event_time": datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC),
        "client": "203.0.113.9",
        "user": "bob",
        "method": "GET",
        "path": "/a/b",
        "query": "c=d",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 512,
        "referrer": None,
        "agent": None,
    }


def test_a_combined_line_has_a_referrer_and_an_agent() -> None:
    row = fields(COMMON + b' "https://from/?q=1" "Mozilla/5.0 (X; Y)"')
    assert (row["referrer"], row["agent"]) == ("https://from/?q=1", "Mozilla/5.0 (X; Y)")


def test_a_client_may_be_an_ipv6_address() -> None:
    assert fields(COMMON.replace(b"203.0.113.9", b"2001:db8::1"))["client"] == "2001:db8::1"


def test_a_user_may_have_a_space_in_his_name() -> None:
    assert fields(COMMON.replace(b" bob ", b" bob smith "))["user"] == "bob smith"


@pytest.mark.parametrize(("zone", "hour", "minute"), [(b"+0000", 10, 5), (b"-0230", 12, 35), (b"+0530", 4, 35)])
def test_times_become_utc(zone: bytes, hour: int, minute: int) -> None:
    time = fields(COMMON.replace(b"+0000", zone))["event_time"]
    assert time == datetime(2015, 5, 17, hour, minute, 3, tzinfo=UTC)


def test_a_dash_for_bytes_is_zero() -> None:
    assert fields(COMMON.replace(b"200 512", b"304 -"))["bytes"] == 0


@pytest.mark.parametrize("request_text", [rb"-", rb"\x16\x03\x01", rb""])
def test_a_request_that_is_no_http_still_counts_with_its_status(request_text: bytes) -> None:
    row = fields(b'203.0.113.9 - - [17/May/2015:10:05:03 +0000] "' + request_text + b'" 400 0 "-" "-"')
    assert (row["status"], row["method"], row["path"], row["protocol"]) == (400, None, None, None)


def test_an_escaped_quote_belongs_to_the_field() -> None:
    row = fields(COMMON + rb' "-" "say \"hello\" twice"')
    assert row["agent"] == r"say \"hello\" twice"


def test_a_request_cannot_forge_a_status() -> None:
    row = fields(rb'203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /\" 200 5 \"x HTTP/1.1" 404 9')
    assert (row["status"], row["bytes"]) == (404, 9)


def test_quotes_that_a_server_did_not_escape_are_read_where_they_can_mean_only_one_thing() -> None:
    line = b'203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /a"b HTTP/1.1" 200 5 "http://x/"y" "an "odd" agent"'
    row = fields(line)
    assert (row["path"], row["referrer"], row["agent"]) == ('/a"b', 'http://x/"y', 'an "odd" agent')


def test_an_agent_cut_off_before_its_closing_quote_is_kept() -> None:
    assert fields(COMMON + b' "-" "Mozilla/5.0 (comp')["agent"] == "Mozilla/5.0 (comp"


def test_bytes_that_are_not_utf_8_stay_readable() -> None:
    assert fields(COMMON.replace(b"/a/b", b"/caf\xe9"))["path"] == "/caf\N{REPLACEMENT CHARACTER}"


def test_the_host_of_an_absolute_target_is_not_part_of_the_path() -> None:
    assert fields(COMMON.replace(b"/a/b?", b"http://host:80/a/b?"))["path"] == "/a/b"


def test_a_path_may_hold_a_space() -> None:
    assert fields(COMMON.replace(b"/a/b?c=d", b"/a b"))["path"] == "/a b"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, NO_VALUE),
        (b"", access_log.EMPTY),
        (b" \t ", access_log.EMPTY),
        (b"# a comment", access_log.NO_ACCESS_LOG_LINE),
        (b"\xff\xfe\x00", access_log.NO_ACCESS_LOG_LINE),
        (COMMON[:60], access_log.NO_ACCESS_LOG_LINE),
        (COMMON.replace(b"200 512", b"2000 512"), access_log.NO_ACCESS_LOG_LINE),
        (COMMON.replace(b"200 512", b"999 512"), access_log.NO_ACCESS_LOG_LINE),
        (COMMON.replace(b"200 512", b"200 -5"), access_log.NO_ACCESS_LOG_LINE),
        (COMMON.replace(b"17/May", b"31/Feb"), access_log.NO_SUCH_TIME),
        (COMMON.replace(b"17/May", b"17/Mai"), access_log.NO_SUCH_TIME),
        (COMMON.replace(b":10:05", b":25:05"), access_log.NO_SUCH_TIME),
    ],
)
def test_an_invalid_line_has_a_reason_and_no_fields(line: bytes | None, why: str) -> None:
    assert reason(line) == why


def test_rows_stay_in_their_lines_places() -> None:
    assert [row["status"] for row in parsed(COMMON, b"x", COMMON.replace(b"200", b"301"), None)] == [
        200,
        None,
        301,
        None,
    ]


def test_no_lines_give_no_rows() -> None:
    assert parsed() == []


def test_every_line_of_the_example_is_parsed() -> None:
    rows = parsed(*gzip.decompress(EXAMPLE.read_bytes()).splitlines())
    assert Counter(row["status"] for row in rows) == {
        200: 9126,
        304: 445,
        404: 213,
        301: 164,
        206: 45,
        500: 3,
        416: 2,
        403: 2,
    }
