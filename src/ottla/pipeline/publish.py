"""Traffic rows as records of a compacted topic: the newest counts of each window, class and prefix, for any consumer.

The key is `window|class|prefix`, so publishing again changes nothing for a reader who keeps the last value of a key,
and compaction throws the older ones away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ottla.client.partitioner import partition_for_key
from ottla.pipeline.produce import Outgoing, Produced, Progress, ensure_topic, produce

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "web-traffic"
PARTITIONS = 4
CONFIG = {"cleanup.policy": "compact"}


def publish(bootstrap: str, rows: pa.Table, progress: Progress) -> Produced:
    """Send every row of `traffic.TRAFFIC`. Raises KafkaError or CannotConnect."""
    partitions = ensure_topic(bootstrap, TOPIC, partitions=PARTITIONS, config=CONFIG)
    return produce(bootstrap, TOPIC, as_records(rows, partitions), progress)


def as_records(rows: pa.Table, partitions: int) -> Iterator[Outgoing]:
    """One record per row."""
    for row in rows.to_pylist():
        key = key_of(row)
        yield Outgoing(partition_for_key(key, partitions), key, value_of(row))


def key_of(row: Mapping[str, Any]) -> bytes:
    """What is counted: `2015-05-17T10:05:00Z|2xx|/blog`."""
    return f"{_iso(row['window_start'])}|{row['status_class']}|{row['path_prefix']}".encode()


def value_of(row: Mapping[str, Any]) -> bytes:
    """The whole row as JSON, so that a value is understood without its key."""
    return json.dumps({**row, "window_start": _iso(row["window_start"])}, separators=(",", ":")).encode()


def _iso(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
