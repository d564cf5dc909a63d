"""Reads and writes the small text files of a log directory, in Kafka's formats.

    recovery-point-offset-checkpoint   below this all is on the disk: where recovery begins to scan
    log-start-offset-checkpoint        where the log begins, if not at 0 (see `begin_checkpoint`)
    replication-offset-checkpoint      the high watermark
    cleaner-offset-checkpoint          how far compaction came

each `0`, the number of lines, then `topic partition offset` a line; and

    meta.properties        whose directory this is
    partition.metadata     the topic's id, one in each partition's directory
    .kafka_cleanshutdown   the last stop was clean, and the broker epoch it ended
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileAccess, read_file
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text, parse_id

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
OFFSET_FILES = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_VERSION = 0
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def text_or_none(files: FileAccess, path: PurePath) -> str | None:
    """Read a small file's text; None where it is missing or is not text."""
    try:
        return read_file(files, path).decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    r"""Return the text of a checkpoint of offsets.

    >>> offsets_text({TopicPartition("web", 0): 7})
    '0\n1\nweb 0 7\n'
    """
    rows = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()]
    return "\n".join([str(_VERSION), str(len(rows)), *rows]) + "\n"


def parse_offsets(text: str | None) -> dict[TopicPartition, int] | None:
    r"""Parse the text of `offsets_text`; an empty file is an empty mapping, None means that the file is corrupt.

    >>> parse_offsets("0\n2\nweb 0 7\n") is None
    True
    """
    if not text:
        return {}
    lines = text.split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split(" ") for line in lines[2:-1]]
        found = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except (ValueError, IndexError):
        return None
    whole = version == _VERSION and count == len(rows) == len(found) and not lines[-1]
    return found if whole and all(offset >= 0 for offset in found.values()) else None


class MetaProperties(NamedTuple):
    """Holds the content of `meta.properties`."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def meta_text(meta: MetaProperties, *, now_ms: int) -> str:
    """Return `meta.properties` version 1, with the date comment Java writes."""
    at = time.gmtime(now_ms // 1000)
    date = (
        f"{_DAYS[at.tm_wday]} {_MONTHS[at.tm_mon - 1]} {at.tm_mday:02} "
        f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} UTC {at.tm_year}"
    )
    return (
        f"#\n#{date}\nnode.id={meta.node_id}\ndirectory.id={id_text(meta.directory_id)}\n"
        f"version=1\ncluster.id={meta.cluster_id}\n"
    )


def parse_meta(text: str) -> dict[str, str]:
    """Parse a properties file as Kafka writes it; `:` and `=` after a backslash are themselves."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().replace("\\", "") for key, value in pairs}


def partition_metadata_text(topic_id: uuid.UUID) -> str:
    """Return the text of the file that ties a partition's directory to one life of its topic."""
    return f"version: 0\ntopic_id: {id_text(topic_id)}"


@lru_cache(maxsize=256)  # the partitions of a topic have one text, and one id in memory
def parse_partition_metadata(text: str | None) -> uuid.UUID:
    """Return the topic's id; the zero id where the file is missing or torn: the metadata store has it then."""
    fields = dict(line.split(": ", 1) for line in (text or "").splitlines() if ": " in line)
    try:
        return parse_id(fields["topic_id"]) if fields.get("version") == "0" else NO_TOPIC_ID
    except (KeyError, ValueError):
        return NO_TOPIC_ID


def clean_shutdown_text(broker_epoch: int) -> str:
    """Return the text of Kafka 4's marker of a clean shutdown."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))


def parse_clean_shutdown(text: str | None) -> int | None:
    """Parse the broker epoch that ended cleanly.

    Returns -1 where an older Kafka left an empty marker, None where there is none.
    """
    if text is None:
        return None
    try:
        return int(json.loads(text)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1
