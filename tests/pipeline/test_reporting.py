"""The report: one file without references to others, with the right figures for any input."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib.metadata import version

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.audit.model import AuditCounts, Discrepancy, DiscrepancyKind, PartitionAudit, TopicAudit
from ottla.pipeline.reporting.audit_section import audit_section
from ottla.pipeline.reporting.charts import colours
from ottla.pipeline.reporting.page import render
from ottla.pipeline.reporting.series import OTHERS, X_VALUES_MAX, chart_data, step_text
from ottla.pipeline.reporting.values import InvalidReportSection, Report, ReportSection, SectionKind, text_of
from ottla.pipeline.stages.report import made_text, offsets_text

NASTY = '</td></style><script src="http://evil/x.js">alert(1)</script><img src=x onerror=y>&"\''
TIME = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Reader(HTMLParser):
    """What a browser would see: the tags with their attributes, the text, and tags left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(*sections: ReportSection, title: str = "Web traffic", subtitle: str = "web-access") -> Reader:
    return Reader(render(Report(title, subtitle, sections, footer=NASTY)))


def rows(**columns: object) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


ALL_KINDS = [
    ReportSection(
        "In short", SectionKind.FIGURES, rows(requests=[12345], sent_bytes=[2_400_000], errors_share=[0.0002])
    ),
    ReportSection(
        "Over time", SectionKind.COLUMNS, rows(start=[TIME, TIME + 2 * HOUR], kind=["2xx", NASTY], requests=[10, 5])
    ),
    ReportSection("Speed", SectionKind.LINES, rows(start=[TIME, TIME + HOUR], median=[1.5, 2.5]), note=NASTY),
    ReportSection(
        "Paths", SectionKind.BARS, rows(path=["/blog", NASTY, None], requests=[7, 5, 1], sent_bytes=[1, 2, 3])
    ),
    ReportSection(
        NASTY, SectionKind.TABLE, rows(what=[NASTY, "b"], when=[TIME, None], top=[[{"value": NASTY, "count": 3}], []])
    ),
]


def test_the_page_asks_for_nothing_from_outside_whatever_is_in_the_tables() -> None:
    html = render(Report(NASTY, NASTY, ALL_KINDS, footer=NASTY))
    page = Reader(html)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base"} == set()
    names = {name for _, attributes in page.tags for name in attributes}
    assert names & {"src", "srcset", "data", "xlink:href", "action", "onerror"} == set()
    links = [attributes["href"] or "" for _, attributes in page.tags if "href" in attributes]
    assert links, "the contents link to the sections"
    anchors = {attributes.get("id") for _, attributes in page.tags}
    assert all(link.startswith("#") and link[1:] in anchors for link in links)
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_every_tag_is_closed() -> None:
    assert report(*ALL_KINDS).open == []


def test_numbers_are_formatted_for_people() -> None:
    text = report(ALL_KINDS[0]).text
    for expected in ("12,345", "requests", "2.4 MB", "sent", "<0.1%", "errors"):
        assert expected in text


def test_a_time_without_a_row_has_no_column() -> None:
    content = chart_data(rows(start=[TIME, TIME + HOUR, TIME + 4 * HOUR], n=[1, 2, 3]))
    assert list(content.x_values) == [TIME + n * HOUR for n in range(5)]
    assert content.values == [[1, 2, 0, 0, 3]]


@pytest.mark.parametrize(
    ("minutes", "count", "step"),
    [(5, 100, "5 minutes"), (5, 1000, "hour"), (60, 2000, "day"), (1440, 3000, "28 days"), (1440, 100_000, "841 days")],
)
def test_time_is_taken_together_in_steps_that_clocks_know(minutes: int, count: int, step: str) -> None:
    times = [TIME + n * timedelta(minutes=minutes) for n in (0, 1, count)]
    content = chart_data(rows(start=times, n=[1, 1, 1]))
    assert content.step is not None
    assert step_text(content.step) == step
    assert content.x_values[0] <= TIME < content.x_values[0] + content.step
    page = report(ReportSection("t", SectionKind.COLUMNS, rows(start=times, n=[1, 1, 1])))
    assert f"n per {step}" in page.text


def test_consecutive_ranked_lists_are_set_in_pairs() -> None:
    bars = ReportSection("Paths", SectionKind.BARS, rows(path=["/blog"], requests=[7]))
    one, two = (render(Report("t", "", [bars] * count)) for count in (1, 2))
    assert ('<div class="two">' in one, '<div class="two">' in two) == (False, True)


def test_a_series_has_its_usual_colour_whatever_else_its_name_says() -> None:
    assert colours(["2xx served", "5xx"]) == colours(["2xx", "5xx server errors"]) != colours(["served", "failed"])


def test_the_page_fits_a_phone_and_paper() -> None:
    page = report(*ALL_KINDS)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "@media print" in render(Report("t", "", []))
    assert [a.get("class") for tag, a in page.tags if tag == "b"][:3] == [None, None, None], "short figures are large"
    times = report(ReportSection("", SectionKind.FIGURES, rows(first=[TIME])))
    assert next(a.get("class") for tag, a in times.tags if tag == "b") == "long"


@given(st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from("abcdefghijk"), st.integers(0, 9)), max_size=60))
def test_nothing_is_lost_where_places_and_series_are_taken_together(points: list[tuple[int, str, int]]) -> None:
    table = pa.table(
        {
            "start": pa.array(
                [TIME + minute * timedelta(minutes=7) for minute, _, _ in points], pa.timestamp("us", "UTC")
            ),
            "name": pa.array([name for _, name, _ in points], pa.string()),
            "n": pa.array([count for _, _, count in points], pa.int64()),
        }
    )
    content = chart_data(table)
    assert len(content.x_values) <= X_VALUES_MAX
    assert sum(map(sum, content.values)) == sum(count for _, _, count in points)
    assert len(content.series) == len(content.values) <= 8
    if len({name for _, name, _ in points}) > 8:
        assert content.series[-1] == OTHERS


def test_charts_and_tables_have_names_and_their_values_are_reached_by_keyboard() -> None:
    page = report(*ALL_KINDS)
    charts = [a for tag, a in page.tags if tag == "svg" and a.get("aria-hidden") != "true"]
    assert [a["role"] for a in charts] == ["img", "img"]
    assert (
        charts[0]["aria-label"]
        == "Over time: at most 10 requests per 2 hours, from 17 May 2015 10:00 to 17 May 2015 12:00"
    )
    tags = [tag for tag, _ in page.tags]
    assert tags.count("details") == tags.count("summary") == 2
    assert {"main", "figure", "caption", "nav"} <= set(tags)
    assert all("scope" in a for tag, a in page.tags if tag == "th")
    assert all("tabindex" in a for _, a in page.tags if a.get("class") == "wide")
    assert "17 May 2015 12:00" in page.text


def test_the_label_of_a_time_stands_below_the_column_of_that_time() -> None:
    hours = [TIME + n * HOUR for n in range(42)]
    page = report(ReportSection("t", SectionKind.COLUMNS, rows(start=hours, n=list(range(1, 43)))))
    columns = [float(a["x"] or 0) + float(a["width"] or 0) / 2 for tag, a in page.tags if tag == "rect"]
    labels = [a["style"] or "" for tag, a in page.tags if tag == "span" and "left:" in (a.get("style") or "")]
    assert labels == [f"left:{columns[n] / 42 * 100:.3f}%" for n in (0, 10, 20, 30, 41)]


def test_every_colour_of_a_chart_has_a_value_for_light_pages_and_one_for_dark_ones() -> None:
    html = render(Report("t", "", ALL_KINDS))
    used = {*re.findall(r"var\((--\w+)\)", html), *(colour[4:-1] for colour in colours("abcdefgh"))}
    light, dark = (dict(re.findall(r"(--\w+): (#\w+)", part)) for part in html.split("prefers-color-scheme: dark", 1))
    assert used <= set(light)
    assert {"--blue", "--red", "--grey"} < set(dark)
    assert [name for name in used if light[name] == dark.get(name)] == []
    assert not re.findall(r"(?:fill|stroke|background)[:=]\W?#", html.split("</style>")[1])


def test_the_page_has_a_dark_form_on_screens_only() -> None:
    html = render(Report("t", "", []))
    assert "@media screen and (prefers-color-scheme: dark)" in html
    assert '<meta name="color-scheme" content="light dark">' in html


def test_small_values_of_a_column_are_visible() -> None:
    table = rows(start=[TIME, TIME], kind=["2xx", "5xx"], requests=[9999, 1])
    page = report(ReportSection("t", SectionKind.COLUMNS, table))
    heights = [float(a["height"] or 0) for tag, a in page.tags if tag == "rect"]
    assert heights == [99.2, 0.8]


def test_the_first_rows_of_more_are_marked_with_the_number_of_all() -> None:
    table = rows(path=["/a", "/b"], requests=[7, 5])
    assert "2 of 1,753." in report(ReportSection("Paths", SectionKind.BARS, table, found="1,753")).text
    assert " of " not in report(ReportSection("Paths", SectionKind.BARS, table)).text


def test_the_page_shows_when_it_was_made_by_which_version_and_from_which_offsets() -> None:
    audit = TopicAudit(
        "web", 600_000, [PartitionAudit(0, 5, 1010, 0, 1010), PartitionAudit(1, 0, 0, 0, 0)], producers=0, started_ms=0
    )
    text = Reader(render(Report("t", "s", [], offsets_text([audit]), made_text(1_431_856_800_000)))).text
    assert f"Made 17 May 2015 10:00 UTC by Ottla {version('ottla')}" in text
    assert "From topic web: partition 0 offsets 5 to 1,009." in text


def test_columns_of_many_steps_begin_at_full_hours() -> None:
    times = [TIME + timedelta(minutes=5 * n) for n in (1, 2, 1000)]
    assert [x.minute for x in chart_data(rows(start=times, n=[1, 1, 1])).x_values[:2]] == [0, 0]


def test_columns_reach_as_high_as_their_share_of_the_highest() -> None:
    page = report(ReportSection("t", SectionKind.COLUMNS, rows(start=[TIME, TIME + HOUR], n=[10, 5])))
    assert [a["height"] for tag, a in page.tags if tag == "rect"] == ["100.000", "50.000"]
    assert "at most 10 n" in page.text


def test_values_of_x_that_are_no_times_stay_in_their_order() -> None:
    content = chart_data(rows(kind=["z", "a"], n=[1, 2]))
    assert (list(content.x_values), content.values) == (["z", "a"], [[1, 2]])


def test_empty_sections_are_marked_on_the_page() -> None:
    empty = pa.schema([("start", pa.timestamp("us")), ("n", pa.int64())]).empty_table()
    for kind in (SectionKind.COLUMNS, SectionKind.LINES, SectionKind.TABLE, SectionKind.BARS):
        assert "Nothing to show." in report(ReportSection("t", kind, empty)).text


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (SectionKind.COLUMNS, rows(a=[1])),
        (SectionKind.LINES, rows(a=[TIME], b=["text"])),
        (SectionKind.BARS, rows(a=["x"], b=["y"])),
        (SectionKind.FIGURES, rows(a=[1, 2])),
        (SectionKind.TABLE, pa.table({})),
    ],
)
def test_rows_without_a_chart_are_explained(kind: SectionKind, table: pa.Table) -> None:
    with pytest.raises(InvalidReportSection, match=f"section 'Mine': {kind} needs"):
        report(ReportSection("Mine", kind, table))


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (True, "", "yes"),
        (1234.5, "", "1,234"),
        (b"\xff", "", "\\xff"),
        ([{"value": "/a", "count": 2}], "", "/a 2"),
        (TIME, "", "17 May 2015 10:00"),
        (1500, "bytes", "1.5 KB"),
    ],
)
def test_values_look_as_people_write_them(value: object, column: str, text: str) -> None:
    assert text_of(value, column) == text


def test_the_audit_is_part_of_the_page_with_its_verdict() -> None:
    books = PartitionAudit(0, 0, 10, 0, 10)
    books.lines[0] = AuditCounts(in_log=10, loaded=9, missing=1)
    books.faults.append(Discrepancy(DiscrepancyKind.MISSING, 0, 3, 4, 1, 0))
    topic_audit = TopicAudit(NASTY, 600_000, [books], producers=0, started_ms=0)
    html = render(Report("t", "s", ALL_KINDS), audit_section([topic_audit]))
    page = Reader(html)
    header, contents = html.split("</header>")[0], html.split("<nav")[1].split("</nav>")[0]
    assert '<a href="#audit"><b class="bad">THE BOOKS DO NOT BALANCE</b></a>' in header
    assert '<a href="#audit">Audit</a>' in contents
    assert 'id="audit"' in html
    assert "THE BOOKS DO NOT BALANCE" in page.text
    assert "partition 0, offset 3" in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.open == []
