"""The report: one file that needs nothing else, with the right figures, whatever a client sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from ottla.pipeline.balance import BalanceSheet, PartitionBooks
from ottla.pipeline.report import render
from ottla.pipeline.summary import BARS_MAX, Bar, Ranked, Summary, bars, step_for

NASTY = '</td><script src="http://evil/x.js">alert(1)</script><img src=x onerror=y>&"'
TIME = datetime(2015, 5, 17, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


def summary(**changes: object) -> Summary:
    figures: dict[str, object] = {
        "requests": 12345,
        "errors": 345,
        "bytes": 2_400_000,
        "clients": 67,
        "first": TIME,
        "last": TIME + HOUR,
        "step": HOUR,
        "bars": [Bar(TIME, {"2xx": 12000}, 2_000_000), Bar(TIME + HOUR, {"4xx": 345}, 400_000)],
        "statuses": [Ranked("200", 12000, 2_000_000), Ranked("404", 344, 0), Ranked("403", 1, 0)],
        "paths": [Ranked("/blog", 777, 10), Ranked(NASTY, 5, 0)],
        "top_clients": [Ranked("203.0.113.9", 888, 10)],
    }
    return Summary(**{**figures, **changes})  # type: ignore[arg-type]


SHEET = BalanceSheet([PartitionBooks(0, read=10, acknowledged=10, in_log=10, in_lake=9, quarantined=1)])


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


@pytest.fixture(scope="module")
def page() -> Reader:
    return Reader(render(summary(), SHEET, title="Web traffic", source="a.log"))


def test_the_page_asks_for_nothing_from_outside(page: Reader) -> None:
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base"} == set()
    names = {name for _, attributes in page.tags for name in attributes}
    assert names & {"src", "href", "srcset", "data", "xlink:href", "action"} == set()
    html = render(summary(), SHEET, title="t", source="s")
    assert "url(" not in html
    assert "@import" not in html


def test_every_tag_is_closed(page: Reader) -> None:
    assert page.open == []


def test_the_figures_are_all_there(page: Reader) -> None:
    for figure in ("12,345", "345", "errors (2.8%)", "67", "2.4 MB", "12,000", "97.2%", "<0.1%", "777", "888"):
        assert figure in page.text, figure


def test_the_charts_are_drawings_inside_the_page(page: Reader) -> None:
    charts = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(charts) == 3, "traffic, bytes, status mix"


def test_the_bars_have_the_heights_of_their_figures(page: Reader) -> None:
    bars_of_traffic = [a for tag, a in page.tags if tag == "rect" and a["fill"] in {"#2f7d5b", "#d9902f"}][:2]
    assert [float(a["height"] or 0) for a in bars_of_traffic] == pytest.approx([100, 345 / 12000 * 100], abs=0.01)


def test_what_a_client_sent_stays_text(page: Reader) -> None:
    assert NASTY in page.text


def test_the_page_fits_a_phone_and_paper(page: Reader) -> None:
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "@media print" in render(summary(), None, title="t", source="s")


def test_the_balance_sheet_is_part_of_the_page(page: Reader) -> None:
    assert "The books balance" in page.text
    lossy = BalanceSheet([PartitionBooks(4, read=10, acknowledged=10, in_log=10, in_lake=7, quarantined=1)])
    text = Reader(render(summary(), lossy, title="t", source="s")).text
    assert "do not balance" in text
    assert "partition 4: 10 offsets in the log, but 8 rows" in text


def test_a_log_without_a_request_makes_a_page_too() -> None:
    nothing = summary(
        requests=0, errors=0, bytes=0, clients=0, first=None, last=None, bars=[], statuses=[], paths=[], top_clients=[]
    )
    assert "no requests" in Reader(render(nothing, None, title="t", source="s")).text


@pytest.mark.parametrize("hours", [0, 1, 9, 11, 100, 1000, 10_000, 100_000])
def test_a_chart_over_any_time_has_few_enough_bars(hours: int) -> None:
    step = step_for(TIME, TIME + hours * HOUR)
    rows = [{"window_start": TIME + h * HOUR, "status_class": "2xx", "requests": 1, "bytes": 3} for h in (0, hours)]
    drawn = bars(rows, step)
    assert len(drawn) <= BARS_MAX + 1
    assert sum(sum(bar.requests.values()) for bar in drawn) == 2
    assert sum(bar.bytes for bar in drawn) == 6


def test_time_without_a_request_is_not_left_out_of_a_chart() -> None:
    rows = [{"window_start": TIME + h * HOUR, "status_class": "2xx", "requests": 1, "bytes": 0} for h in (0, 3)]
    assert [sum(bar.requests.values()) for bar in bars(rows, HOUR)] == [1, 0, 0, 1]
