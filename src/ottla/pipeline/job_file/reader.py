"""Reads a job file: its text to typed values by the declared sections, and every mistake with its line.

Reading does not stop at the first mistake: all of them are reported together.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.client.offset_spec import InvalidOffsetSpec, parse
from ottla.core.quantities import parse_duration_ms, parse_size
from ottla.pipeline.job_file.key_lines import Path as Where
from ottla.pipeline.job_file.key_lines import lines_of
from ottla.pipeline.job_file.schema import Key, SectionSchema, ValueType
from ottla.pipeline.locations import UnsupportedLocation, lake_location, local_path

_SYNTAX = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, order=True)
class JobFileProblem:
    """Holds one mistake in a job file."""

    line: int
    text: str

    def shown(self, file: str) -> str:
        """Format the problem as compilers do, so that editors go there."""
        return f"{file}:{self.line}: {self.text}"


@dataclass(slots=True)
class ReadResult:
    """A job file's values and mistakes."""

    values: dict[str, Any] = field(default_factory=dict)
    """By section; a list of them where there may be several."""
    faults: list[JobFileProblem] = field(default_factory=list)
    lines: Mapping[Where, int] = field(default_factory=dict)

    def add_problem(self, where: Where, text: str) -> None:
        """Note a mistake at a key, or at what is nearest above it."""
        while where and where not in self.lines:
            where = where[:-1]
        self.faults.append(JobFileProblem(self.lines.get(where, 1), text))


def read(text: str, sections: Iterable[SectionSchema], *, directory: Path, now_ms: int) -> ReadResult:
    """Read a file's text. Paths in it are relative to `directory`, the file's own."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _SYNTAX.search(str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        return ReadResult(faults=[JobFileProblem(line, f"this is not TOML: {_SYNTAX.sub('', str(error)).strip()}")])
    return read_values(given, sections, lines_of(text), directory=directory, now_ms=now_ms)


def read_values(
    given: Mapping[str, Any],
    sections: Iterable[SectionSchema],
    lines: Mapping[Where, int],
    *,
    directory: Path,
    now_ms: int,
) -> ReadResult:
    """Read values as TOML's reader gives them."""
    reader = _Reader(ReadResult(lines=lines), directory, now_ms)
    schemas = {section.name: section for section in sections}
    for name in given:
        if name not in schemas:
            reader.read.add_problem((name,), f"there is no section [{name}]{_suggest_name(name, schemas)}")
    for name, section in schemas.items():
        reader.read.values[name] = reader.section(section, given.get(name), (name,))
    reader.read.faults.sort()
    return reader.read


class _Reader:
    def __init__(self, read: ReadResult, directory: Path, now_ms: int) -> None:
        self.read, self._directory, self._now_ms = read, directory, now_ms

    def section(self, section: SectionSchema, given: Any, where: Where) -> Any:
        """Return the values of a section, or of all of its name."""
        if not section.many:
            if given is None and not section.defaults_to_present:
                return None
            if not isinstance(given, dict | None):
                self.read.add_problem(where, f"write [{_name(where)}] and its keys below")
                given = None
            return self._values(section, given or {}, where)
        if given is None:
            return []
        if isinstance(given, dict):
            self.read.add_problem(where, f"there may be several of these: write [[{_name(where)}]]")
            given = [given]
        return [self._values(section, one, (*where, n)) for n, one in enumerate(given) if isinstance(one, dict)]

    def _values(self, section: SectionSchema, given: dict[str, Any], where: Where) -> dict[str, Any]:
        keys = {key.name: key for key in section.keys}
        inside = {sub.name: sub for sub in section.sections}
        values: dict[str, Any] = {}
        before = len(self.read.faults)
        for name, value in given.items():
            if name in inside:
                continue
            key = keys.get(name) or section.entries
            if key is None:
                self.read.add_problem(
                    (*where, name), f"[{_name(where)}] has no key {name!r}{_suggest_name(name, [*keys, *inside])}"
                )
            else:
                values[name] = self._value(key, value, (*where, name), name)
        for key in section.keys:
            if key.required and key.name not in given:
                self.read.add_problem(where, f"[{_name(where)}] needs {key.name}: {key.doc}")
            if values.get(key.name) is None:
                values[key.name] = key.default
        for name, sub in inside.items():
            values[name] = self.section(sub, given.get(name), (*where, name))
        if len(self.read.faults) == before:
            for name, text in section.check(values):
                self.read.add_problem((*where, name) if name else where, text)
        return values

    def _value(self, key: Key, value: Any, where: Where, name: str) -> Any:
        """Return a value of the key's kind, or note a mistake and return None."""
        try:
            found = self._convert(key.kind, value)
        except UnsupportedLocation as error:
            self.read.add_problem(where, f"{name}: {error}")
            return None
        if found is None:
            self.read.add_problem(where, f"{name} must be {key.kind.value}, not {_shown(value)}")
        elif key.choices and found not in key.choices:
            choices = ", ".join(key.choices)
            self.read.add_problem(
                where, f"{name} is one of {choices}, not {_shown(value)}{_suggest_name(str(found), key.choices)}"
            )
            return None
        return found

    def _convert(self, kind: ValueType, value: Any) -> Any:
        match kind:
            case ValueType.TEXT:
                return value if isinstance(value, str) else None
            case ValueType.TEXTS:
                if isinstance(value, str):
                    return (value,)
                return tuple(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else None
            case ValueType.NUMBER:
                return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
            case ValueType.FLAG:
                return value if isinstance(value, bool) else None
            case ValueType.SPAN:
                return parse_duration_ms(value) if isinstance(value, str) else None
            case ValueType.SIZE:
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    return value
                return parse_size(value) if isinstance(value, str) else None
            case ValueType.SHARE:
                return parse_share(value)
            case ValueType.OFFSET_SPEC:
                return self._offset_spec(value)
            case ValueType.PATH:
                return self._directory / local_path(value).expanduser() if isinstance(value, str) and value else None
            case ValueType.LOCATION:
                return lake_location(value, self._directory) if isinstance(value, str) and value else None

    def _offset_spec(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int):
            return None
        try:
            return parse(str(value), now_ms=self._now_ms)
        except InvalidOffsetSpec:
            return None


def parse_share(value: Any) -> float | None:
    """Return a share as a number from 0 to 1, or None if it is none.

    >>> parse_share("0.5%"), parse_share("110%"), parse_share(0.1)
    (0.005, None, None)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    share = float(match[1]) / 100 if match else 2.0
    return share if share <= 1 else None


def _name(where: Where) -> str:
    return ".".join(part for part in where if isinstance(part, str))


def _suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a question after the known name that is most like this one, or "" if none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; is {near[0]} meant?" if near else ""


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return repr(value)
