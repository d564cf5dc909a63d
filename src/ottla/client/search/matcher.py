"""Evaluates a filter expression on records.

Each key and value is parsed as JSON at most once, if the expression names a path in it or compares it with a number.
The time for a record is at most linear in its size, times the number of conditions. A comparison with what is missing
or of another type is false; `!=` is the opposite of `==`, so it is true then.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ottla.client.search.expression import (
    And,
    AnyElement,
    Comparison,
    Exists,
    Expression,
    Field,
    FieldKind,
    IsIn,
    Literal,
    Not,
    Operator,
    Or,
    Step,
)
from ottla.client.search.patterns import compile_search
from ottla.core.ids import TopicPartition
from ottla.records.record_reader import Record

Matcher = Callable[[TopicPartition, Record], bool]
Decode = Callable[[TopicPartition, bytes], Any]
"""Returns the JSON value of a record's key or value. A `ValueError` means that it has none."""

_MISSING: Any = object()
_ORDER: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def decode_json(_: TopicPartition, text: bytes) -> Any:
    """Decode a key or value as JSON. Raises `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def compile_filter(
    expression: Expression, *, decode_key: Decode = decode_json, decode_value: Decode = decode_json
) -> Matcher:
    """Return the function that returns whether a record matches an expression.

    >>> from ottla.client.search.parser import parse
    >>> matches = compile_filter(parse("value.amount > 10", now_ms=0))
    >>> [matches(TopicPartition("t", 0), Record(0, 0, None, text, [])) for text in (b'{"amount": 11}', b"{}", None)]
    [True, False, False]
    """
    is_true = _compile(expression)
    return lambda tp, record: is_true(_Fields(tp, record, decode_key, decode_value))


def match_all(matchers: Iterable[Matcher]) -> Matcher | None:
    """Return whether a record matches all of these; None if there are none."""
    every = tuple(matchers)
    if not every:
        return None
    return every[0] if len(every) == 1 else lambda tp, record: all(matcher(tp, record) for matcher in every)


def compile_grep(pattern: str) -> Matcher:
    """Return whether a record's key or value contains a match. Raises `InvalidRegex`."""
    search = compile_search(pattern)
    return lambda _, record: any(text is not None and search(text) for text in (record.key, record.value))


def equal_key(key: bytes) -> Matcher:
    """Return whether a record has this key."""
    return lambda _, record: record.key == key


def least_timestamp_ms(expression: Expression) -> int | None:
    """Return the timestamp that every matching record has at least; None if the expression does not say."""
    match expression:
        case Comparison(Field(FieldKind.TIMESTAMP), Operator.GREATER | Operator.GREATER_OR_EQUAL | Operator.EQUAL, at):
            return int(at) if isinstance(at, int | float) else None
        case And(terms):
            return max((least for term in terms if (least := least_timestamp_ms(term)) is not None), default=None)
        case _:
            return None


@dataclass(slots=True)
class _Fields:
    """The parts of one record, and the JSON values of its key and value once they are needed."""

    tp: TopicPartition
    record: Record
    decode_key: Decode
    decode_value: Decode
    _decoded: dict[FieldKind, Any] = field(default_factory=dict)

    def bytes_of(self, kind: FieldKind) -> bytes | None:
        return self.record.key if kind is FieldKind.KEY else self.record.value

    def json_of(self, kind: FieldKind) -> Any:
        if kind not in self._decoded:
            self._decoded[kind] = self._decode(kind)
        return self._decoded[kind]

    def _decode(self, kind: FieldKind) -> Any:
        text = self.bytes_of(kind)
        if text is None:
            return _MISSING
        try:
            return (self.decode_key if kind is FieldKind.KEY else self.decode_value)(self.tp, text)
        except ValueError:
            return _MISSING


_Condition = Callable[[_Fields], bool]
_Test = Callable[[Any], bool]


def _compile(expression: Expression) -> _Condition:
    match expression:
        case And(terms):
            every = tuple(map(_compile, terms))
            return lambda fields: all(term(fields) for term in every)
        case Or(terms):
            some = tuple(map(_compile, terms))
            return lambda fields: any(term(fields) for term in some)
        case Not(term):
            inner = _compile(term)
            return lambda fields: not inner(fields)
        case Exists(where):
            return _exists(where)
        case IsIn(where, literals):
            return _compile(Or(tuple(Comparison(where, Operator.EQUAL, literal) for literal in literals)))
        case Comparison(where, Operator.NOT_EQUAL, literal):
            equal = _comparison(where, Operator.EQUAL, literal)
            return lambda fields: not equal(fields)
        case Comparison(where, how, literal):
            return _comparison(where, how, literal)


def _exists(where: Field) -> _Condition:
    kind, path = where.kind, where.path
    if kind is FieldKind.HEADER:
        return lambda fields: any(name == where.header for name, _ in fields.record.headers)
    if path:
        return lambda fields: any(True for _ in _at(fields.json_of(kind), path))
    if kind in {FieldKind.KEY, FieldKind.VALUE}:
        return lambda fields: fields.bytes_of(kind) is not None
    if kind is FieldKind.TIMESTAMP:
        return lambda fields: fields.record.timestamp_ms >= 0
    return lambda _: True


def _comparison(where: Field, how: Operator, literal: Literal) -> _Condition:
    kind, path = where.kind, where.path
    match kind:
        case FieldKind.TOPIC:
            of_text = _text_test(how, literal)
            return lambda fields: of_text(fields.tp.topic.encode())
        case FieldKind.PARTITION | FieldKind.OFFSET | FieldKind.TIMESTAMP:
            take, test = _NUMBERS[kind], _json_test(how, literal)
            return lambda fields: test(take(fields))
        case FieldKind.HEADER:
            of_text, name = _text_test(how, literal), where.header
            return lambda fields: any(of_text(text) for key, text in fields.record.headers if key == name)
    if path:
        test = _json_test(how, literal)
        return lambda fields: any(map(test, _at(fields.json_of(kind), path)))
    if literal is not None and not isinstance(literal, str):
        test = _json_test(how, literal)
        return lambda fields: test(fields.json_of(kind))
    of_text = _text_test(how, literal)
    return lambda fields: of_text(fields.bytes_of(kind))


_NUMBERS: dict[FieldKind, Callable[[_Fields], int]] = {
    FieldKind.PARTITION: lambda fields: fields.tp.partition,
    FieldKind.OFFSET: lambda fields: fields.record.offset,
    FieldKind.TIMESTAMP: lambda fields: fields.record.timestamp_ms,
}


def _text_test(how: Operator, literal: Literal) -> Callable[[bytes | None], bool]:
    """Return the test of a text in UTF-8; that of a number or a boolean is of the JSON value that the text is."""
    if literal is None:
        return (lambda text: text is None) if how is Operator.EQUAL else (lambda _: False)
    if not isinstance(literal, str):
        of_json = _json_test(how, literal)
        return lambda text: text is not None and of_json(_json_or_missing(text))
    if how is Operator.MATCHES:
        search = compile_search(literal)
        return lambda text: text is not None and search(text)
    operand = literal.encode("utf-8", "surrogatepass")
    if how is Operator.CONTAINS:
        return lambda text: text is not None and operand in text
    if how is Operator.EQUAL:
        return lambda text: text == operand
    compare = _ORDER[how]  # the order of bytes in UTF-8 is that of characters
    return lambda text: text is not None and compare(text, operand)


def _json_or_missing(text: bytes) -> Any:
    try:
        return decode_json(TopicPartition("", 0), text)
    except ValueError:
        return _MISSING


def _json_test(how: Operator, literal: Literal) -> _Test:
    """Return the test of a value that JSON has given."""
    match how:
        case Operator.EQUAL:
            return lambda value: _equals(value, literal)
        case Operator.MATCHES:
            search = compile_search(str(literal))
            return lambda value: isinstance(value, str) and search(value.encode("utf-8", "replace"))
        case Operator.CONTAINS:
            return lambda value: _contains(value, literal)
    compare = _ORDER[how]
    if isinstance(literal, str):
        return lambda value: isinstance(value, str) and compare(value, literal)
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and compare(value, literal)


def _contains(value: Any, literal: Literal) -> bool:
    """Return whether a text contains a text, or a list an element."""
    if isinstance(value, str):
        return isinstance(literal, str) and literal in value
    return isinstance(value, list) and any(_equals(element, literal) for element in value)


def _equals(value: Any, literal: Literal) -> bool:
    """Compare a JSON value with a literal: `true` is not 1."""
    if isinstance(value, bool) or isinstance(literal, bool) or value is None or literal is None:
        return value is literal
    return bool(value == literal)


def _at(value: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    """Yield the JSON values at a path: one at most, unless it has `[*]`."""
    values = [value]
    for step in path:
        values = [inner for outer in values for inner in _inside(outer, step)]
        if not values:
            break
    yield from values


def _inside(value: Any, step: Step) -> Iterable[Any]:
    if isinstance(step, str):
        return (value[step],) if isinstance(value, dict) and step in value else ()
    if not isinstance(value, list):
        return value.values() if step is AnyElement.ANY and isinstance(value, dict) else ()
    if isinstance(step, AnyElement):
        return value
    return (value[step],) if -len(value) <= step < len(value) else ()
