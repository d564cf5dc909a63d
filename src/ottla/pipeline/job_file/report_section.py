"""Declares the sections `[report]` and `[audit]` of a job file."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.client.audit import BUCKET_MS
from ottla.pipeline.job_file.schema import Key, KeyProblem, SectionSchema, Values, ValueType
from ottla.pipeline.reporting.query import SectionQuery
from ottla.pipeline.reporting.values import SectionKind

SECTION = SectionSchema(
    "section",
    "One part of the page: a query, and how its rows are shown.",
    (
        Key("title", ValueType.TEXT, "What stands above it.", "", example='"Requests over time"'),
        Key(
            "show",
            ValueType.TEXT,
            "figures: one row, each column a figure. columns, lines: x and a number, or x, a series and a number. "
            "bars: a label, a number, and more. table: anything.",
            choices=tuple(SectionKind),
            example='"columns"',
            required=True,
        ),
        Key(
            "sql",
            ValueType.TEXT,
            "A query of Spark's SQL; the job's tables are there by their names.",
            example='"select window_start, requests from traffic order by 1"',
            required=True,
        ),
        Key("limit", ValueType.NUMBER, "The most rows to show; the page says of how many.", None, example="10"),
        Key("note", ValueType.TEXT, "A line below it.", "", example='"without robots"'),
    ),
    many=True,
)


REPORT = SectionSchema(
    "report",
    "One HTML page from the job's tables.",
    (
        Key("title", ValueType.TEXT, "Of the page.", "Report", example='"Web traffic"'),
        Key("subtitle", ValueType.TEXT, "Below the title.", "", example='"the last days"'),
        Key("output", ValueType.PATH, "The file.", example='"report.html"', required=True),
        Key("books", ValueType.FLAG, "Whether the report includes the audit.", default=True, example="true"),
    ),
    sections=(SECTION,),
    defaults_to_present=False,
)


def check_audit(values: Values) -> Iterator[KeyProblem]:
    """Report keys that contradict each other."""
    if not values["bucket"] or values["bucket"] % BUCKET_MS:
        yield "bucket", f"bucket is a multiple of {BUCKET_MS // 60_000} minutes, for producers report in such pieces"


AUDIT = SectionSchema(
    "audit",
    "Compares every offset of the log with the tables.",
    (
        Key(
            "bucket",
            ValueType.SPAN,
            "The length of record time that one row of the audit covers.",
            BUCKET_MS,
            example='"1h"',
        ),
        Key(
            "content",
            ValueType.FLAG,
            "Whether the content of records and rows is compared too, not only their offsets; reads whole records.",
            default=True,
            example="true",
        ),
        Key(
            "watermark",
            ValueType.FLAG,
            "Whether the time until which a table is complete is written into its properties.",
            default=True,
            example="true",
        ),
    ),
    check=check_audit,
)


def section_queries(values: Values) -> list[SectionQuery]:
    """Return the sections of a report."""
    return [
        SectionQuery(one["title"], SectionKind(one["show"]), one["sql"], one["note"], one["limit"])
        for one in values["section"]
    ]
