"""Finds the line of every key and table in a TOML file, for error messages: no library returns it.

Reads only texts that `tomllib` has parsed, so it does not validate: it finds keys, skips values, and descends into
arrays and inline tables. A key's path is the path of its value in `tomllib`'s result: names, and indexes in arrays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN = re.compile(r"[^,\]}\s#]+(?:[ ][0-9:.+Zz-]+)?")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_BASIC_LINES = re.compile(r'"""(?:[^\\]|\\.)*?"""("{0,2})', re.DOTALL)
_LITERAL_LINES = re.compile(r"'''.*?'''('{0,2})", re.DOTALL)


def lines_of(text: str) -> Mapping[Path, int]:
    r"""Return the line, from 1, of every key and table.

    >>> dict(lines_of("a = 1\n[[b]]\nc.d = [{e = 2}]"))[("b", 0, "c", "d", 0, "e")]
    3
    """
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        """The number of tables that the arrays of tables have so far."""

    def scan(self) -> None:
        table: Path = ()
        while self._skip(_SPACE) < len(self.text):
            if self._take("[["):
                table = self._header()
                number = self._counts.get(table, -1) + 1
                self._counts[table] = number
                self._note(table)
                table = (*table, number)
                self._note(table)
                self._take("]]")
            elif self._take("["):
                table = self._header()
                self._note(table)
                self._take("]")
            else:
                self._pair(table)

    def _header(self) -> Path:
        """Return a table's path, with the number of the newest table where a name means an array of tables."""
        path: Path = ()
        keys = self._key()
        for n, name in enumerate(keys):
            path = (*path, name)
            self._note(path)
            if path in self._counts and n < len(keys) - 1:
                path = (*path, self._counts[path])
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._skip(_BLANK)
        self._take("=")
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._take("["):
            number = 0
            while self._skip(_SPACE) < len(self.text) and not self._take("]"):
                self._note((*path, number))
                self._value((*path, number))
                number += 1
                self._skip(_SPACE)
                self._take(",")
        elif self._take("{"):
            while self._skip(_SPACE) < len(self.text) and not self._take("}"):
                self._pair(path)
                self._skip(_SPACE)
                self._take(",")
        else:
            for form in (_BASIC_LINES, _LITERAL_LINES, _BASIC, _LITERAL, _PLAIN):
                if match := form.match(self.text, self.at):
                    self.at = match.end()
                    return
            self.at += 1  # not TOML at all; never stand still

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_BLANK)
            for form in (_BASIC, _LITERAL, _BARE):
                if match := form.match(self.text, self.at):
                    self.at = match.end()
                    names.append(_unquoted(match[0]))
                    break
            else:
                self.at += 1
                return names
            self._skip(_BLANK)
            if not self._take("."):
                return names

    def _note(self, path: Path) -> None:
        self.lines.setdefault(path, self._line())

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _skip(self, form: re.Pattern[str]) -> int:
        match = form.match(self.text, self.at)
        assert match is not None, "it matches nothing too"
        self.at = match.end()
        return self.at

    def _take(self, what: str) -> bool:
        if not self.text.startswith(what, self.at):
            return False
        self.at += len(what)
        return True


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if key.startswith('"'):
        import tomllib

        return next(iter(tomllib.loads(f"{key} = 0")))
    return key
