"""The console in a headless Chromium: every page at two widths in both colours, and what people do with it.

`OTTLA_PICTURES=docs/console pytest tests/console/test_in_chromium.py` writes the pictures of docs/console.md.
"""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Kafka, kafka
from tests.support import chromium
from tests.support.console import options_for, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.skipif(chromium.executable() is None, reason=chromium.NOT_THERE),
]
ROOT = Path(__file__).resolve().parents[2]
PICTURES = os.environ.get("OTTLA_PICTURES")
POISON = 7
PARTITION = 0
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
PAGES = (
    "/",
    "/brokers/1",
    "/topics",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/messages?where=value.amount > 100",
    f"/topics/orders/messages/{PARTITION}/{POISON}",
    "/topics/orders/producers?partition=0",
    f"/topics/orders/produce?partition={PARTITION}&offset={POISON}",
    "/topics/orders/groups",
    "/topics/orders/settings",
    "/topics/orders/settings?all=1",
    "/topics/bytes/messages",
    "/topics/empty/messages",
    "/groups",
    "/groups/billing",
    "/clients",
    "/doctor",
    "/transactions",
    "/transactions?topic=orders",
    "/reassignments",
    "/acls",
    "/users",
    "/quotas",
)
IN_DOCS = {
    "/": "cluster",
    "/topics/orders/messages?where=value.amount > 100": "messages",
    f"/topics/orders/messages/{PARTITION}/{POISON}": "record",
    "/groups/billing": "group",
}


def fill(k: Kafka) -> None:
    """Write orders with one that no consumer can read, and let a group stop there."""
    for number in range(200):
        order = f'{{"order": {1000 + number}, "amount": {number * 7 % 250}, "currency": "EUR"}}'
        value = "{order: 1007, amount: broken" if number == POISON else order
        producer = "legacy-import" if number == POISON else "shop-frontend"
        partition = PARTITION if number < 40 else number % 3
        k.produce("orders", value, key=f"customer-{number % 40}", partition=partition, headers=[("producer", producer)])
    k.produce("bytes", b"\x08\x96\x01\x12\x07testing")
    k.produce("bytes", b"\x00\x00\x00\x00\x07\x02ab")
    k.produce("bytes", None, key="deleted")


def commit(bootstrap: str) -> None:
    """Commit as a group whose consumer failed at the wrong record."""
    from kafka import KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id="billing", enable_auto_commit=False)
    parts = [TopicPartition("orders", number) for number in range(3)]
    consumer.assign(parts)
    ends = consumer.end_offsets(parts)
    offsets = {part: OffsetAndMetadata(POISON if part.partition == PARTITION else ends[part], "", -1) for part in parts}
    consumer.commit(offsets)
    consumer.close()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    topics = {"orders": 3, "bytes": 1, "empty": 1, "customers": 1, "payments": 6}
    with kafka(topics=topics, brokers=3) as k:
        fill(k)
        commit(k.bootstrap)
        yield k


@pytest.fixture(scope="module")
def url(brokers: Kafka) -> Iterator[str]:
    options = options_for(brokers.bootstrap, cluster_name="shop", sample_every_s=0.5)
    with served(options) as address, writing(brokers):
        yield address


class writing:  # noqa: N801 - used as a function
    """Writes records until the end, so that plots have something to show."""

    def __init__(self, k: Kafka) -> None:
        self._k, self._over = k, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.1):
            self._k.produce("payments", f'{{"payment": {number}}}', key=str(number))
            number += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def axe() -> str:
    return chromium.axe_script()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_accessible_fits_and_logs_no_error(
    browser: Any, url: str, axe: str, width: str, colours: str, tmp_path: Path
) -> None:
    wide, high = WIDTHS[width]
    context = browser.new_context(viewport={"width": wide, "height": high}, color_scheme=colours)
    page = context.new_page()
    problems = chromium.Problems(page)
    page.goto(url)
    page.wait_for_selector("[data-drawn]", timeout=30_000)
    found = []
    for path in PAGES:
        page.goto(url + path)
        if page.locator("[data-plot]").count():
            page.wait_for_selector("[data-drawn]", timeout=30_000)
        page.wait_for_load_state("networkidle")
        name = IN_DOCS.get(path) if colours == "light" and width == "desktop" else None
        directory = ROOT / PICTURES if PICTURES and name else tmp_path
        picture = directory / f"{name or re.sub(r'[^a-z0-9]+', '-', path) + width + colours}.png"
        page.screenshot(path=picture)
        assert picture.stat().st_size > 0
        found += [f"{path}: {each}" for each in chromium.violations(page, axe)]
        if page.evaluate("document.documentElement.scrollWidth") > wide:
            found.append(f"{path}: wider than the window")
    context.close()
    assert not found
    assert not problems.found


def test_a_poisoned_message_its_producer_and_the_group_that_waits_are_found_in_under_ten_clicks(
    browser: Any, url: str
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    problems = chromium.Problems(page)
    clicks = 0

    def click(name: str, role: str = "link") -> None:
        nonlocal clicks
        page.get_by_role(role, name=name, exact=True).first.click()
        clicks += 1

    page.goto(url)
    click("Groups")
    click("billing")
    page.wait_for_selector(".why .cause", timeout=30_000)
    row = page.locator("tr", has=page.get_by_role("link", name="orders", exact=True)).first
    row.get_by_role("link", name=str(POISON), exact=True).click()  # the next record that the group reads
    clicks += 1

    assert "amount: broken" in page.locator(".value-text").inner_text()
    assert "legacy-import" in page.locator(".side").inner_text()
    stuck = page.locator(".readers .stuck")
    assert "billing" in stuck.inner_text()
    assert "Waits at this record" in stuck.inner_text()

    click("Skip this record…", "button")
    assert "Nothing has been changed yet" in page.inner_text("main")
    assert f"ottla group seek billing --to {POISON + 1}" in page.inner_text(".cli >> nth=0")
    click("Reset offsets", "button")
    page.wait_for_selector("[role=status]")
    assert "Set the offsets of 1 partitions" in page.inner_text("[role=status]")
    assert clicks < 10
    assert not problems.found
    context.close()


def test_the_live_tail_shows_records_as_they_are_written(browser: Any, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    problems = chromium.Problems(page)
    page.goto(f"{url}/topics/payments/messages")
    page.get_by_role("button", name="Follow live").click()
    page.wait_for_selector(".live-tail tbody tr", timeout=30_000)
    assert "payment" in page.locator(".live-tail tbody tr").first.inner_text()
    page.get_by_role("button", name="Stop").click()
    assert page.locator("[data-tail-state]").inner_text() == "stopped"
    assert not problems.found
    context.close()


def test_the_list_of_topics_is_searched_while_one_types(browser: Any, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/topics")
    page.keyboard.press("/")
    page.keyboard.type("pay")
    page.locator("#results").get_by_role("link", name="orders", exact=True).wait_for(state="detached")
    assert "payments" in page.inner_text("#results")
    context.close()


def test_keys_lead_to_pages(browser: Any, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    context.close()


def test_a_record_is_written_as_a_copy_with_a_preview(browser: Any, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/topics/orders/messages/0/0")
    page.get_by_role("link", name="Write a copy…").click()
    assert '"order": 1000' in page.input_value("textarea[name=value]")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Write record").click()
    assert "Written to partition" in page.inner_text("[role=status]")
    context.close()
