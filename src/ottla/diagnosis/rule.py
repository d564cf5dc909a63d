"""Declares a rule: what it reads, and what it says where its condition holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from ottla.diagnosis.facts import Facts


class Subject(StrEnum):
    """The kinds of things that rules are about."""

    CONNECTION = "connection"
    CLUSTER = "cluster"
    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT = "client"


class Reason(NamedTuple):
    """The line with the cause, and the line with the fix: a command where there is one."""

    cause: str
    fix: str


class Finding(NamedTuple):
    """A rule whose condition holds for something."""

    rule: str
    subject: Subject
    name: str  # of the topic, group, client or broker; empty for the cluster
    cause: str
    fix: str

    @property
    def about(self) -> str:
        """Return what it is about, in words."""
        return f"{self.subject} {self.name}" if self.name else str(self.subject)


Check = Callable[[Facts, str], Iterator[Reason]]
"""Yields a reason where the condition holds for the subject of this name."""


class Rule(NamedTuple):
    """One row of the table. Rules are in the order of their weight: what explains more comes first."""

    name: str
    subject: Subject
    reads: str
    check: Check
