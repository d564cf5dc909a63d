"""Declares the tree of a filter expression: what `parser.py` returns and `matcher.py` evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

Literal = str | int | float | bool | None
"""A value that is written in an expression; None is `null`."""


class FieldKind(StrEnum):
    """The part of a record that a field of an expression names."""

    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    KEY = "key"
    VALUE = "value"
    HEADER = "header"


class Operator(StrEnum):
    """A comparison of a field with a literal."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    CONTAINS = "contains"
    MATCHES = "matches"


class AnyElement(Enum):
    """The step `[*]` of a path."""

    ANY = "*"


Step = str | int | AnyElement
"""A step of a path into JSON: a name, the index of an element (negative: from the end), or every element."""


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a record; of a key or value also the path of a JSON value in it."""

    kind: FieldKind
    header: str = ""
    path: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a field with a literal; that of a timestamp is in milliseconds since 1970."""

    field: Field
    operator: Operator
    literal: Literal


@dataclass(frozen=True, slots=True)
class IsIn:
    """Whether a field equals one of several literals."""

    field: Field
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a record has a field: not null for a key or value, any value for a header or a path."""

    field: Field


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of an expression."""

    term: Expression


@dataclass(frozen=True, slots=True)
class And:
    """Whether all terms are true."""

    terms: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Whether one of the terms is true."""

    terms: tuple[Expression, ...]


Expression = Comparison | IsIn | Exists | Not | And | Or
