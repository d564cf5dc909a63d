"""Selects the settings that a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.client.admin import ConfigEntry
from ottla.console.visit import Visit


@dataclass(frozen=True, slots=True)
class ShownSettings:
    """The settings of a resource: those that differ from their defaults, or all, or those with a text in the name."""

    entries: Sequence[ConfigEntry]
    total: int
    shows_all: bool
    search: str


def settings_of(visit: Visit, entries: Sequence[ConfigEntry]) -> ShownSettings:
    """Return the settings that the query selects."""
    shows_all, search = visit.query("all") == "1", visit.query("search").strip().lower()
    shown = [
        entry
        for entry in entries
        if (search and search in entry.name) or (not search and (shows_all or not entry.is_default))
    ]
    return ShownSettings(shown, len(entries), shows_all, search)
