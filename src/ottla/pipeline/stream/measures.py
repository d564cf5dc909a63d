"""Parses the measures of a window: `count`, `distinct(client)`, `sum(bytes) if status < 400`.

A measure is a word, in brackets what it is about (an expression of Spark's SQL), for two of them a number, and
optionally a condition. All are exact: a quantile is one of the values there were, not an estimate, so that the same
rows always give the same result, in whatever pieces they came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

TOP_MAX = 1000


class InvalidMeasure(ValueError):
    """The text is no measure. The message says what would be one."""


class Measure(StrEnum):
    """Names the measures of an aggregate."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVERAGE = "avg"
    DISTINCT = "distinct"
    QUANTILE = "quantile"
    TOP = "top"


@dataclass(frozen=True, slots=True)
class MeasureSpec:
    """Declares one column of the result."""

    name: str
    measure: Measure
    about: str = ""
    """An expression of Spark's SQL; empty for `count`."""
    number: float = 0
    """Of `quantile`, between 0 and 1; of `top`, how many."""
    condition: str = ""
    """Rows for which this is not true do not count; empty for all."""

    @property
    def text(self) -> str:
        """As a person writes it.

        >>> parse_measure("p95", "quantile( ms, 0.950) if a < 5").text
        'quantile(ms, 0.95) if a < 5'
        """
        number = f", {self.number:g}" if self.measure in _NUMBERED else ""
        inside = f"({self.about}{number})" if self.about else ""
        return f"{self.measure}{inside}{_IF}{self.condition}" if self.condition else f"{self.measure}{inside}"


_SHAPE = re.compile(r"\s*(?P<word>[a-z]+)\s*(?:\((?P<inside>.*)\))?\s*", re.DOTALL)
_NUMBERED = frozenset({Measure.QUANTILE, Measure.TOP})
_IF = " if "


def parse_measure(name: str, text: str) -> MeasureSpec:
    """Parse a measure from its text.

    >>> parse_measure("p95", "quantile(ms, 0.95) if status < 500")
    MeasureSpec(name='p95', measure=<Measure.QUANTILE: 'quantile'>, about='ms', number=0.95, condition='status < 500')

    Raises InvalidMeasure.
    """
    main, condition = _split_condition(text)
    match = _SHAPE.fullmatch(main)
    if match is None or match["word"] not in list(Measure):
        raise InvalidMeasure(f"{text!r} is no measure: write one of {', '.join(Measure)}, such as sum(bytes)")
    measure, inside = Measure(match["word"]), (match["inside"] or "").strip()
    if measure is Measure.COUNT:
        if inside not in {"", "*"}:
            raise InvalidMeasure(f"{text!r}: count takes nothing in brackets; write count if {inside} is not null")
        return MeasureSpec(name, measure, condition=condition)
    if measure not in _NUMBERED:
        if not inside:
            raise InvalidMeasure(f"{text!r}: {measure} of what? Write {measure}(column)")
        return MeasureSpec(name, measure, inside, condition=condition)
    about, comma, number = inside.rpartition(",")
    if not comma or not about.strip():
        example = "quantile(ms, 0.95)" if measure is Measure.QUANTILE else "top(path, 10)"
        raise InvalidMeasure(f"{text!r}: {measure} needs a column and a number: {example}")
    return MeasureSpec(name, measure, about.strip(), _number(measure, number.strip(), text), condition)


def _split_condition(text: str) -> tuple[str, str]:
    """Return the text before and after an ` if ` outside brackets."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and text.startswith(_IF, at):
            condition = text[at + len(_IF) :].strip()
            if not condition:
                raise InvalidMeasure(f"{text!r}: if what?")
            return text[:at], condition
    return text, ""


def _number(measure: Measure, text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InvalidMeasure(f"{whole!r}: {text!r} is no number") from None
    if measure is Measure.QUANTILE and not 0 <= number <= 1:
        raise InvalidMeasure(f"{whole!r}: a quantile lies between 0 and 1, the median is 0.5")
    if measure is Measure.TOP and (number != int(number) or not 1 <= number <= TOP_MAX):
        raise InvalidMeasure(f"{whole!r}: how many is a whole number from 1 to {TOP_MAX}")
    return number
