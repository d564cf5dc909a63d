"""How eagerly the broker looks for damage on its disks (storage/scrubbing/scrubber.py)."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import DAY_MS, Type, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubberConfig:
    """Settings of the scrubber. The names are Ottla's own: Kafka has none."""

    bytes_per_second: int = setting(
        "ottla.scrub.bytes.per.second", default=10 << 20, kind=Type.LONG, unit="bytes", at_least=0, live=True,
        doc="At most this much of what lies on the disk is read to look for damage; 0 does not look.",
    )  # fmt: skip
    interval_ms: int = setting(
        "ottla.scrub.interval.ms", default=DAY_MS, kind=Type.LONG, unit="ms", at_least=1, live=True,
        doc="A look through everything begins this long after the last one began, or when that one is done.",
    )  # fmt: skip
