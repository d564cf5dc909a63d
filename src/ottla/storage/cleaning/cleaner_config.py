"""Declares the settings of the cleaner as a whole; what a topic may override is in `storage/config.py`."""

from __future__ import annotations

import sys

from ottla.core.settings import MIB, SECOND_MS, Section, Type, setting


class CleanerConfig(Section):
    """The settings of the log cleaner. Names, defaults and limits are Apache Kafka 4.4's."""

    enable: bool = setting(
        "log.cleaner.enable", default=True, kind=Type.BOOLEAN,
        doc="Whether topics with cleanup.policy=compact are compacted, including the broker's own.",
    )  # fmt: skip
    threads: int = setting(
        "log.cleaner.threads", default=1, kind=Type.INT, unit="processes", at_least=0, live=True,
        doc="Maximum number of logs compacted at the same time, each in a process of its own.",
    )  # fmt: skip
    dedupe_buffer_bytes: int = setting(
        "log.cleaner.dedupe.buffer.size", default=128 * MIB, kind=Type.LONG, unit="bytes", at_least=MIB, live=True,
        doc="Maximum memory of all maps from key to latest offset: 24 bytes per key. A log with more "
        "keys than fit is compacted in several passes.",
    )  # fmt: skip
    load_factor: float = setting(
        "log.cleaner.io.buffer.load.factor", default=0.9, kind=Type.DOUBLE, at_least=0, at_most=1, live=True,
        doc="Maximum load factor of the map; a higher one causes more collisions.",
    )  # fmt: skip
    io_buffer_bytes: int = setting(
        "log.cleaner.io.buffer.size", default=512 << 10, kind=Type.INT, unit="bytes", at_least=0, live=True,
        doc="Total size of the buffers for reading and writing.",
    )  # fmt: skip
    io_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second", default=sys.float_info.max, kind=Type.DOUBLE, unit="bytes", at_least=1,
        live=True, doc="Maximum average rate of all reads and writes of compaction.",
    )  # fmt: skip
    backoff_ms: int = setting(
        "log.cleaner.backoff.ms", default=15 * SECOND_MS, kind=Type.LONG, unit="ms", at_least=0, live=True,
        doc="How long the cleaner waits if there is no log to compact.",
    )  # fmt: skip
