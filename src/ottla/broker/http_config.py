"""Declares the settings of HTTP and metrics, for the packages above: one module, since each takes time to load."""

from __future__ import annotations

from ottla.core.settings import SECOND_MS, Section, Type, setting


class HttpConfig(Section):
    """Holds where a broker serves HTTP, if it does."""

    listener: str = setting(
        "ottla.http.listener", default="", kind=Type.STRING,
        doc="Where the broker serves metrics, health and the console by HTTP: `host:port`, or `https://host:port` with "
        "the certificate of `listener.name.http.ssl.keystore.location` (or `ssl.keystore.location`). Port 0 takes a "
        "free one, and workers take one port each, as for `listeners`. Empty: nowhere. Other addresses than loopback "
        "need https and `ottla.http.token`, or `ottla.allow.insecure.listeners=true`. It needs the extra `metrics`.",
    )  # fmt: skip
    token: str = setting(
        "ottla.http.token", default="", kind=Type.PASSWORD,
        doc="The token that requests to the HTTP listener send in `Authorization: Bearer TOKEN`. Without it, on "
        "loopback, all clients can read the metrics and events, and none can change anything there. Health "
        "needs none, and the console signs people in by itself.",
    )  # fmt: skip


class MetricsConfig(Section):
    """Holds what is measured beside what is counted anyway, and where it is sent."""

    partitions_max: int = setting(
        "ottla.metrics.partitions.max", default=20_000, kind=Type.INT, at_least=0,
        doc="So many replicas, topics, groups and partitions of groups have series of their own at `/metrics`. Sums "
        "count all. `ottla_metrics_partitions_left_out` and its like say how many have none.",
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
    client_metrics: bool = setting(
        "ottla.client.metrics.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether the broker offers clients to push their metrics to it (KIP-714), which newer clients then do "
        "unasked, and shows the last values at `/metrics`. What they push, subscriptions say: "
        "`kafka-configs.sh --entity-type client-metrics`.",
    )  # fmt: skip
    telemetry_bytes_max: int = setting(
        "telemetry.max.bytes", default=1 << 20, kind=Type.INT, unit="bytes", at_least=1,
        doc="Maximum size of what a client pushes of its metrics, before and after decompression.",
    )  # fmt: skip
    client_series_max: int = setting(
        "ottla.client.metrics.series.max", default=20_000, kind=Type.INT, at_least=0,
        doc="So many values of clients' metrics the broker keeps, and 1,000 of one client. "
        "`ottla_client_metrics_left_out_total` counts those that it does not.",
    )  # fmt: skip
