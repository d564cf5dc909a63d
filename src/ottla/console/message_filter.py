"""Builds the condition of a search from the fields of its form: the grammar is that of `consume --where`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.search.matcher import Matcher, compile_filter, compile_grep, equal_key, match_all
from ottla.client.search.parser import InvalidFilter, parse
from ottla.console.visit import Refused
from ottla.core.regexes import InvalidRegex


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The fields: an exact key, a regular expression in key or value, and an expression over fields."""

    key: str = ""
    text: str = ""
    where: str = ""

    def matcher(self, *, now_ms: int) -> Matcher | None:
        """Return the condition; None if every record matches. Raises Refused for what is not valid."""
        matchers = []
        try:
            if self.key:
                matchers.append(equal_key(self.key.encode()))
            if self.text:
                matchers.append(compile_grep(self.text))
            if self.where.strip():
                matchers.append(compile_filter(parse(self.where, now_ms=now_ms)))
        except InvalidFilter as error:
            raise Refused(f"the condition cannot be read: {error}") from None
        except InvalidRegex as error:
            raise Refused(f"{self.text!r} is not a regular expression: {error}") from None
        return match_all(matchers)

    @property
    def words(self) -> list[str]:
        """The options of `ottla consume` that select the same."""
        given = (("--key", self.key), ("--grep", self.text), ("--where", self.where.strip()))
        return [word for option, value in given if value for word in (option, value)]
