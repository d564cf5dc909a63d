"""Declares the settings of metrics. The package `ottla.metrics` reads them, which is above this one."""

from __future__ import annotations

from ottla.core.settings import SECOND_MS, Section, Type, setting


class MetricsConfig(Section):
    """Holds what is measured beside what is counted anyway, and where it is sent."""

    partitions_max: int = setting(
        "ottla.metrics.partitions.max", default=20_000, kind=Type.INT, at_least=0,
        doc="So many replicas, and so many partitions of groups, have series of their own at `/metrics`. Sums count "
        "all. `ottla_metrics_partitions_left_out` says how many have none.",
    )  # fmt: skip
    probe_interval_ms: int = setting(
        "ottla.metrics.probe.interval.ms", default=0, kind=Type.LONG, unit="milliseconds", at_least=0,
        doc="Interval at which the broker produces a record to each partition that it leads of the topic "
        "`__ottla_probe`, and reads it again, to measure what clients see. 0: it does not.",
    )  # fmt: skip
    probe_timeout_ms: int = setting(
        "ottla.metrics.probe.timeout.ms", default=5 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="A record of the probe that was acknowledged and cannot be read for so long counts as lost.",
    )  # fmt: skip
    otlp_endpoint: str = setting(
        "ottla.metrics.otlp.endpoint", default="", kind=Type.STRING,
        doc="The URL to which the metrics are pushed by OTLP over HTTP, such as `http://collector:4318/v1/metrics`. "
        "Empty: nowhere. It needs the extras `metrics` and `otlp`.",
    )  # fmt: skip
    otlp_interval_ms: int = setting(
        "ottla.metrics.otlp.interval.ms", default=60 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=1000,
        doc="Interval at which the metrics are pushed.",
    )  # fmt: skip
