"""Finds the names of fields that the readers of a table take for one another. Pure.

Spark and Delta take names that differ only in case for one, at every depth. Iceberg's paths join names by dots, so that
a column `a.b` and the field `b` of a column `a` are one path there; Spark's are too where the dot is not quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


class Spelling:
    """Finds the field that a name means: an equal name, or else the first one that differs only in case."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._by_lower: dict[str, str] = {}
        for name in names:
            self._names.add(name)
            self._by_lower.setdefault(name.lower(), name)

    def of(self, name: str) -> str:
        """Return the spelling of a name; a new name is added with its own.

        >>> spelling = Spelling(["id"])
        >>> spelling.of("ID"), spelling.of("New"), spelling.of("new")
        ('id', 'New', 'New')
        """
        if name in self._names:
            return name
        spelled = self._by_lower.setdefault(name.lower(), name)
        self._names.add(spelled)
        return spelled


class DottedPaths:
    """The paths of all fields of a table as one text each, and whose they are."""

    def __init__(self, fields: Iterable[tuple[str, pa.DataType]]) -> None:
        self._owners: dict[str, tuple[str, ...]] = {}
        for name, kind in fields:
            for path in _paths((name,), kind):
                self._owners.setdefault(_dotted(path), path)

    def add(self, name: str, kind: pa.DataType) -> str | None:
        """Add a column, or new fields inside one. Returns the path of a field that has the same text, or None.

        >>> DottedPaths([("a.b", pa.int64())]).add("a", pa.struct([("b", pa.int64())]))
        'a.b'
        """
        added: dict[str, tuple[str, ...]] = {}
        for path in _paths((name,), kind):
            text = _dotted(path)
            owner = self._owners.get(text) or added.get(text)
            if owner is not None and owner != path:
                return text
            added[text] = path
        self._owners |= added
        return None


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path).lower()


def _paths(path: tuple[str, ...], kind: pa.DataType) -> Iterator[tuple[str, ...]]:
    yield path
    if pa.types.is_struct(kind):
        for f in kind:
            yield from _paths((*path, f.name), f.type)
    elif pa.types.is_list(kind):
        yield from _paths((*path, "element"), kind.value_type)
    elif pa.types.is_map(kind):
        yield (*path, "key")
        yield from _paths((*path, "value"), kind.item_type)
