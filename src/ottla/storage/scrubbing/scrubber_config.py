"""Declares the settings of the scrubber (storage/scrubbing/scrubber.py)."""

from __future__ import annotations

from ottla.core.settings import DAY_MS, Section, Type, setting


class ScrubberConfig(Section):
    """Settings of the scrubber. The names are Ottla's own: Kafka has none."""

    bytes_per_second: int = setting(
        "ottla.scrub.bytes.per.second", default=10 << 20, kind=Type.LONG, unit="bytes", at_least=0, live=True,
        doc="Maximum rate of reading data to verify checksums; 0 disables scrubbing.",
    )  # fmt: skip
    interval_ms: int = setting(
        "ottla.scrub.interval.ms", default=DAY_MS, kind=Type.LONG, unit="ms", at_least=1, live=True,
        doc="Minimum time from the start of one scrub of all data to the start of the next.",
    )  # fmt: skip
