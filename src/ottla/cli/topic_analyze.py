"""`ottla topic analyze`: shows batches, codecs, sizes, rates, keys, and how records are spread over partitions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.name_patterns import existing_topic
from ottla.cli.offset_options import check_range, read_offset
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import alert, bytes_text, duration_text, show_fields, show_json, show_rows
from ottla.client.cluster import Cluster
from ottla.client.offset_spec import HELP as OFFSET_HELP
from ottla.client.offset_spec import resolve
from ottla.client.offsets import offset_bounds
from ottla.client.topic_analysis import Sizes, TopicAnalysis, analyze_topic, findings
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition

EPILOG = f"\b\nExample:\nottla topic analyze orders --from -1h\n\n\b\nOffsets, for --from and --to:\n{OFFSET_HELP}"
_KEYS_SHOWN = 5
_KEY_CHARS_MAX = 60


def analyze(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)],
    first: Annotated[
        str,
        typer.Option("--from", metavar="OFFSET", help="First offset; by default the last 10,000 of each partition."),
    ] = "-10000",
    end: Annotated[str, typer.Option("--to", metavar="OFFSET", help="End, exclusive.")] = "end",
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show batches, codecs, sizes, rates and keys of a topic's records, and partitions with more than their share.

    The records are read, `--from start` reads all. Numbers of different keys are exact up to 1,000.
    """
    now_ms = SystemClock().wall_ms()
    first_spec = read_offset("--from", first, now_ms=now_ms)
    end_spec = read_offset("--to", end, now_ms=now_ms)
    check_range(first_spec, end_spec)

    async def work(cluster: Cluster) -> TopicAnalysis:
        topic = await existing_topic(cluster, name)
        bounds = await offset_bounds(cluster, [TopicPartition(name, p.partition) for p in topic.partitions])
        starts = await resolve(cluster, first_spec, bounds)
        return await analyze_topic(cluster, starts, await resolve(cluster, end_spec, bounds, after=starts))

    analysis = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    described = _described(name, analysis)
    if shape is OutputFormat.JSON:
        show_json(described)
    else:
        _show(described, shape)


def _described(name: str, analysis: TopicAnalysis) -> dict[str, Any]:
    """Return the analysis as a JSON object."""
    total, keys = analysis.records, analysis.keys
    return {
        "topic": name,
        "records": total,
        "seconds": analysis.seconds,
        "records_per_second": (total - 1) / analysis.seconds if total > 1 and analysis.seconds > 0 else None,
        "bytes_per_second": analysis.batch_bytes.total / analysis.seconds if analysis.seconds > 0 else None,
        "tombstones": analysis.tombstones,
        "with_headers": analysis.with_headers,
        "key_bytes": _sizes(analysis.key_bytes),
        "value_bytes": _sizes(analysis.value_bytes),
        "batches": {
            "count": analysis.batch_bytes.count,
            "transactional": analysis.transactional,
            "records": _sizes(analysis.batch_records),
            "bytes": _sizes(analysis.batch_bytes),
            "codecs": dict(analysis.codecs.most_common()),
            "compression_ratio": analysis.compression_ratio,
        },
        "keys": {
            "records_without_key": keys.without_key,
            "distinct": keys.distinct,
            "most_common": [
                {"key": key.decode("utf-8", "replace"), "records": count, "share": count / keys.count}
                for key, count in keys.most_common(_KEYS_SHOWN)
            ],
        },
        "partitions": [
            {
                "partition": tp.partition,
                "records": counts.records,
                "share": counts.records / total if total else 0.0,
                "batches": counts.batches,
                "batch_bytes": counts.batch_bytes,
                "records_per_second": analysis.rate(counts),
            }
            for tp, counts in analysis.partitions.items()
        ],
        "findings": findings(analysis),
    }


def _sizes(sizes: Sizes) -> dict[str, Any]:
    return {"mean": sizes.mean, "p50": sizes.percentile(0.5), "p99": sizes.percentile(0.99), "max": sizes.largest}


def _show(found: dict[str, Any], shape: OutputFormat) -> None:
    batches, keys = found["batches"], found["keys"]
    ratio, bytes_per_second = batches["compression_ratio"], found["bytes_per_second"]
    show_fields(
        {
            "topic": found["topic"],
            "records": f"{found['records']:,} in {duration_text(found['seconds'])}",
            "rate": f"{_rate(found['records_per_second'])} records/s, {bytes_text(round(bytes_per_second or 0))}/s",
            "batches": f"{batches['count']:,}, {batches['transactional']:,} of transactions",
            "codecs": ", ".join(f"{name} {count:,}" for name, count in batches["codecs"].items()),
            "compressed": "" if ratio is None else f"to 1/{ratio:.1f}" if ratio > 1 else "no",
            "keys": f"about {keys['distinct']:,} different, {keys['records_without_key']:,} records without",
            "tombstones": found["tombstones"],
            "with_headers": found["with_headers"],
        },
        shape,
    )
    print()
    rows = [
        {"size": "key", **_in_bytes(found["key_bytes"])},
        {"size": "value", **_in_bytes(found["value_bytes"])},
        {"size": "batch", **_in_bytes(batches["bytes"])},
        {"size": "records a batch", **{name: f"{value:.0f}" for name, value in batches["records"].items()}},
    ]
    show_rows(rows, ["size", "mean", "p50", "p99", "max"], shape)
    if keys["most_common"]:
        print()
        named = [
            {**key, "key": key["key"][:_KEY_CHARS_MAX], "share": f"{key['share']:.1%}"} for key in keys["most_common"]
        ]
        show_rows(named, ["key", "records", "share"], shape)
    print()
    parts = [
        {
            **part,
            "share": f"{part['share']:.1%}",
            "size": bytes_text(part["batch_bytes"]),
            "records/s": _rate(part["records_per_second"]),
        }
        for part in found["partitions"]
    ]
    show_rows(parts, ["partition", "records", "share", "batches", "size", "records/s"], shape)
    for finding in found["findings"]:
        print(alert(f"  {finding}"))


def _in_bytes(sizes: dict[str, Any]) -> dict[str, str]:
    return {name: bytes_text(round(value)) for name, value in sizes.items()}


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:,.1f}"
