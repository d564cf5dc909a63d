"""Every difference between Ottla's answers and Apache Kafka's that is meant, with its reason.

A difference that is not in this table fails the test, and so does a row of the table that no longer occurs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intended:
    """One meant difference: where it shows (regular expressions over the whole text), and why."""

    api: str
    label: str
    path: str
    why: str

    def covers(self, api: str, label: str, path: str) -> bool:
        """Whether this row speaks of a difference found."""
        parts = ((self.api, api), (self.label, label), (self.path, path))
        return all(re.fullmatch(wanted, found) for wanted, found in parts)


INTENDED: tuple[Intended, ...] = ()
