"""Cuts long lists into pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; pages are counted from 1."""

    items: Sequence[T]
    number: int
    pages: int
    total: int
    first: int  # of the list, counted from 1; 0 if it is empty

    @property
    def last(self) -> int:
        """The position of the last item on this page."""
        return self.first + len(self.items) - 1 if self.items else 0


def page_of(items: Sequence[T], number: int, *, size: int = PAGE_SIZE) -> ListPage[T]:
    """Return a page of a list, the nearest one that exists.

    >>> page_of(range(101), 9).items, page_of([], 1).pages
    (range(100, 101), 1)
    """
    pages = max(1, -(-len(items) // size))
    number = min(max(number, 1), pages)
    start = (number - 1) * size
    shown = items[start : start + size]
    return ListPage(shown, number, pages, len(items), start + 1 if shown else 0)


def page_number(text: str | None) -> int:
    """Read the number of a page from a query.

    >>> page_number("3"), page_number("x"), page_number(None)
    (3, 1, 1)
    """
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 9 else 1
