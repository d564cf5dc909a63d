"""Describes a log that a start has found by the name of its directory."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from ottla.core.ids import TopicPartition


class FoundLog(NamedTuple):
    """A log or a future log to load."""

    topic_partition: TopicPartition
    path: PurePath
    is_future: bool
