"""Parses and checks the options of a sink, once on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.core.errors import UnsupportedCompressionType
from ottla.pipeline.connector.control_topic import CONTROL_TOPIC
from ottla.pipeline.connector.options import (
    BrokerOptions,
    InvalidOption,
    OptionMap,
    check_sink_names,
    connection_options,
)
from ottla.records.codecs import codec_named

_BATCH_BYTES = 256 << 10
_DELIVERY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Holds the parsed options of a sink."""

    connection: BrokerOptions
    topic: str | None = None
    """For all rows; None takes it from the column topic."""
    codec: int = 0
    acks: int = -1
    batch_bytes: int = _BATCH_BYTES
    delivery_timeout_s: float = _DELIVERY_TIMEOUT_S
    deduplicate: bool = True
    """Keep entries in the control topic, so that repeated tasks and micro-batches write nothing twice."""
    control_topic: str = CONTROL_TOPIC
    fail_on_mismatch: bool = True


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse and validate all options of a sink. Raises InvalidOption."""
    given = OptionMap(options)
    check_sink_names(given)
    given.flag("includeHeaders", otherwise=True)
    deduplicate = given.flag("deduplicate", otherwise=True)
    acks = {"all": -1, "-1": -1, "1": 1}.get((given.text("kafka.acks") or "all").lower())
    if acks is None:
        raise InvalidOption(f"kafka.acks: {given.text('kafka.acks')!r} is neither all nor 1 (0 would hide a failure)")
    if acks != -1 and deduplicate:
        raise InvalidOption(
            "kafka.acks: without all, records may be lost that the control topic says are there; deduplicate=false"
        )
    if not given.flag("kafka.enable.idempotence", otherwise=True):
        raise InvalidOption("kafka.enable.idempotence: this sink always is; leave it out")
    mismatch = (given.text("onReplayMismatch") or "fail").lower()
    if mismatch not in {"fail", "warn"}:
        raise InvalidOption(f"onReplayMismatch: {mismatch!r} is neither fail nor warn")
    if (topic := given.text("topic")) == "":
        raise InvalidOption("topic: it is empty")
    timeout_ms = given.number("kafka.delivery.timeout.ms")
    return SinkOptions(
        connection=connection_options(given),
        topic=topic,
        codec=_codec(given),
        acks=acks,
        batch_bytes=given.number("kafka.batch.size") or _BATCH_BYTES,
        delivery_timeout_s=_DELIVERY_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000,
        deduplicate=deduplicate,
        control_topic=given.text("controlTopic") or CONTROL_TOPIC,
        fail_on_mismatch=mismatch == "fail",
    )


def _codec(given: OptionMap) -> int:
    name = given.text("kafka.compression.type") or "none"
    try:
        return int(codec_named(name))
    except UnsupportedCompressionType as error:
        raise InvalidOption(f"kafka.compression.type: {error}") from None
