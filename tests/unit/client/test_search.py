"""Filter expressions: what they select, what is refused and where, and what a record costs."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.search import parser
from ottla.client.search.expression import And, Comparison, Exists, Field, FieldKind, Not, Operator, Or
from ottla.client.search.matcher import compile_filter, compile_grep, equal_key, least_timestamp_ms, match_all
from ottla.client.search.parser import InvalidFilter, parse
from ottla.core.ids import TopicPartition
from ottla.core.regexes import InvalidRegex
from ottla.records.record_reader import Record

NOW_MS = 1_800_000_000_000
ORDER: dict[str, Any] = {
    "amount": 12.5,
    "id": 9007199254740993,
    "paid": True,
    "note": None,
    "name": "Zoë",
    "items": [{"sku": "a-1", "count": 2}, {"sku": "b-2", "count": 1}],
    "tags": ["new", "gift"],
    "a b": {"x-y": 1},
}
RECORD = Record(
    offset=70,
    timestamp_ms=1_767_225_600_000,  # 2026-01-01
    key=b"a",
    value=json.dumps(ORDER, ensure_ascii=False).encode(),
    headers=[("trace", b"t1"), ("trace", b"t2"), ("x-retry", b"3"), ("empty", None)],
)
TP = TopicPartition("orders", 3)


def matches(text: str, record: Record = RECORD) -> bool:
    return compile_filter(parse(text, now_ms=NOW_MS))(TP, record)


SELECTING = [
    'key == "a" and value.amount > 10 and header.trace exists and timestamp >= "2026-01-01"',
    "value.amount == 12.5",
    "value.id == 9007199254740993",
    "value.amount >= 12.5 and value.amount < 13",
    "value.paid == true",
    "value.note == null",
    "value.note exists",
    "value.gone not exists",
    'value.gone != "x"',
    "value.name > 'Z'",
    'value.items[0].sku == "a-1"',
    'value.items[-1]["sku"] == "b-2"',
    'value.items[*].sku == "b-2"',
    "value.items[*].count in (5, 1)",
    'value.tags contains "gift"',
    'value.name contains "oë"',
    'value.name matches "^Zo.$"',
    'value["a b"].x-y == 1',
    'value contains "Zoë"',
    'value matches "b-[0-9]"',
    'key in ("b", "a")',
    'key not in ("b", "c")',
    "key exists",
    "key != null",
    'header.trace == "t2"',
    "header.x-retry >= 3",
    'header["x-retry"] == "3"',
    "header.empty exists and header.empty == null",
    'topic == "orders" and partition == 3 and offset >= 70 and offset < 71',
    'topic matches "^ord"',
    'timestamp < "2026-01-01T00:00:00.001"',
    'timestamp > "-9999d"',
    'not (key == "b" or not key == "a")',
    'key == "b" and key == "a" or key == "a"',
    'key == "\\u0061"',
]
REJECTING = [
    'key == "b"',
    'key == "A"',
    "value.paid == 1",
    "value.amount == true",
    'value.amount == "12.5"',
    'value.amount > "1"',
    'value.name > "a" and value.name < "b"',
    "value.gone > 1",
    "value.gone == null",
    "value.items.sku exists",
    "value.items[7] exists",
    "value.name[0] exists",
    'value.amount contains "1"',
    "value > 10",
    "key > 1",
    "key == null",
    'header.gone == "x"',
    'header.empty == ""',
    'key == "a" and (key == "b" or key == "c")',
    'timestamp >= "2026-01-02"',
    'timestamp >= "-1h"',
]


@pytest.mark.parametrize("text", SELECTING)
def test_an_expression_selects_the_record_that_it_describes(text: str) -> None:
    assert matches(text)
    assert not matches(f"not ({text})")


@pytest.mark.parametrize("text", REJECTING)
def test_an_expression_does_not_select_what_differs_or_is_of_another_type(text: str) -> None:
    assert not matches(text)
    assert matches(f"not ({text})")


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5000, b'{"a": {}}'])
def test_a_value_without_the_json_that_is_asked_for_is_not_selected(value: bytes | None) -> None:
    record = RECORD._replace(value=value)
    assert not matches("value.a.b > 1", record)
    assert not matches("value[*].b > 1", record)


def test_a_number_is_compared_with_the_json_value_of_a_whole_key() -> None:
    assert matches("key == 42 and key < 43", RECORD._replace(key=b"42.0"))


def test_and_binds_more_than_or_and_not_more_than_and() -> None:
    key = Field(FieldKind.KEY)
    a, b, c = (Comparison(key, Operator.EQUAL, name) for name in "abc")
    assert parse('not key == "a" and key == "b" or key == "c"', now_ms=0) == Or((And((Not(a), b)), c))
    assert parse("header.trace exists", now_ms=0) == Exists(Field(FieldKind.HEADER, "trace"))


REFUSED = [
    ("", "expected one of topic, partition, offset, timestamp, key, value, header, not the end, at position 1"),
    ("key", "expected == != < <= > >= contains, matches, in or exists, not the end, at position 4"),
    ('key = "a"', "unexpected '= \"a\"'; write == at position 5"),
    ('key == "a" && value == "b"', "write and at position 12"),
    ('key == "a', "the text in quotes is not closed at position 8"),
    ("key == a", "expected a text in quotes, a number, true, false or null, not 'a', at position 8"),
    ('key == "a" key', "expected `and`, `or` or the end, not 'key', at position 12"),
    ('(key == "a"', "expected ')', not the end, at position 12"),
    ("header exists", "expected the header's name, as header.NAME or header[\"NAME\"], not 'exists', at position 8"),
    ("header[1] exists", "expected the header's name"),
    ("value.[1] exists", "expected a name; write others as [\"NAME\"], not '[', at position 7"),
    ("value[x] exists", "expected a name in quotes, a number or * after \"[\", not 'x', at position 7"),
    ('value.a matches "("', "'(' is not a regular expression: missing ): ( at position 17"),
    ("value.a matches 3", "expected a regular expression in quotes, not '3', at position 17"),
    ("value.a > null", "> compares numbers or texts, not 'null', at position 11"),
    ('timestamp > "soon"', "'soon' is not a time: write 2015-05-17T10:00, or milliseconds since 1970 at position 13"),
    ('partition == "1"', "partition is a number, not '\"1\"', at position 14"),
    ("offset contains 1", "offset is a number: compare it with == or <, not 'contains', at position 8"),
    ("size > 1", "expected one of topic, partition"),
    ("__import__('os')", "expected one of topic, partition"),
    ("value.a == 1e", "unexpected '1e' at position 12"),
    ("key == " + "9" * 50, "expected a text in quotes or a number"),
    ("not " * 40 + "key exists", "more than 32 levels of `not` and parentheses"),
    ("(" * 5000, "an expression has at most 4096 characters"),
    (" or ".join(["key exists"] * 65), "an expression has at most 64 conditions"),
    ("key in (" + ",".join(["1"] * 65) + ")", "an expression has at most 64 conditions"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_a_mistake_is_refused_with_its_position(text: str, reason: str) -> None:
    with pytest.raises(InvalidFilter) as refused:
        parse(text, now_ms=NOW_MS)
    assert reason in str(refused.value)
    assert 0 <= refused.value.position <= len(text)


@given(st.text(st.sampled_from("()[]\"'.,=<>!&|* \\key value header a1 and or not in exists"), max_size=60) | st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidFilter):
        matches(text)


names = st.text('abc "\\é', min_size=1, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(document=st.dictionaries(names, json_values, max_size=3), name=names, literal=st.integers(-3, 3) | st.booleans())
def test_a_path_finds_what_python_finds(document: dict[str, Any], name: str, literal: int) -> None:
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    record = RECORD._replace(value=json.dumps(document).encode())
    expected = name in document and type(document[name]) is type(literal) and document[name] == literal
    assert matches(f"value[{quoted}] == {json.dumps(literal)}", record) == expected
    assert matches(f"value[{quoted}] exists", record) == (name in document)


def test_the_least_timestamp_is_known_where_every_match_has_it() -> None:
    def least(text: str) -> int | None:
        return least_timestamp_ms(parse(text, now_ms=NOW_MS))

    assert least("timestamp > 5") == 5
    assert least("timestamp >= 5 and key exists and timestamp >= 9") == 9
    assert least("timestamp >= 5 or key exists") is None
    assert least("not timestamp >= 5") is None
    assert least("timestamp < 5") is None


def test_grep_and_a_key_select_together_with_an_expression() -> None:
    both = match_all([compile_grep("gift"), equal_key(b"a")])
    assert both is not None
    assert both(TP, RECORD)
    assert not both(TP, RECORD._replace(key=b"b"))
    assert not both(TP, RECORD._replace(value=b"x"))
    assert match_all([]) is None


def test_a_json_value_is_decoded_once_and_by_the_given_decoder() -> None:
    decoded = []

    def decode(tp: TopicPartition, text: bytes) -> Any:
        decoded.append((tp, text))
        return {"a": 1, "b": 2}

    found = compile_filter(parse("value.a == 2 or value.b == 2", now_ms=0), decode_value=decode)
    assert found(TP, RECORD._replace(value=b"\0avro"))
    assert decoded == [(TP, b"\0avro")]


def test_without_re2_an_expression_that_may_take_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert compile_grep("^a$|b[+*]?"[:-1])(TP, RECORD)
    for pattern in ("(a+)+$", "a*b", "a{3}", "(a|a)(a|a)b", "a?a?a?aaa"):
        with pytest.raises(InvalidRegex, match="without RE2"):
            compile_grep(pattern)
    with pytest.raises(InvalidRegex):
        compile_grep("[")


def test_the_help_has_valid_examples() -> None:
    for text in ('key == "a"', "value.user.id == 7", 'timestamp >= "2026-01-01"', 'timestamp > "-1h"', "key != null"):
        assert text in parser.HELP
        parse(text, now_ms=NOW_MS)
