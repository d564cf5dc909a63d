"""Declares what a job file may contain: sections of keys with their types, defaults and meaning.

A stage of the pipeline declares its section once; reading, checking (with lines and suggestions), the commented example
and the page in the guide come from it. `check` of a section sees its typed values and says what contradicts what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Values = Mapping[str, Any]
"""The typed values of one section: every declared key, absent ones with their default."""
KeyProblem = tuple[str, str]
"""A key of the section ("" for all of it), and what is wrong with it."""


class ValueType(Enum):
    """The type of a key's value, and its description."""

    TEXT = "a text"
    TEXTS = "a list of texts"
    NUMBER = "a whole number"
    FLAG = "true or false"
    SPAN = 'a length of time, like "30s" or "7d"'
    SIZE = 'a size, like "256MB"'
    SHARE = 'a share, like "5%"'
    OFFSET_SPEC = 'a place in a topic: "start", "end", an offset, "-1h" or "@2015-05-17"'
    PATH = "a path"
    LOCATION = "a path or a URL"


@dataclass(frozen=True, slots=True)
class Key:
    """Declares one key."""

    name: str
    kind: ValueType
    doc: str
    default: Any = None
    choices: tuple[str, ...] = ()
    example: str = ""
    """The value in the example file, in TOML; commented out where there is a default."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class SectionSchema:
    """`[name]`, or `[[name]]` where there may be several."""

    name: str
    doc: str
    keys: tuple[Key, ...]
    many: bool = False
    sections: tuple[SectionSchema, ...] = ()
    """Tables inside, as in `[load.time]`."""
    entries: Key | None = None
    """The form of each key if the keys are the user's own (columns, settings of a client)."""
    check: Callable[[Values], Iterable[KeyProblem]] = field(default=lambda _values: ())
    defaults_to_present: bool = True
    """Whether the section, left out, counts with its defaults; otherwise it is None."""
