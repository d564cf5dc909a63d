"""What people and programs may send or write to a topic: odd names, numbers, bytes and markup, and brokers that are away."""

from __future__ import annotations

import html
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Dialog

from ottla.testing import Kafka, kafka
from tests.support import chromium
from tests.support.console import Browser, browsing, options_for, served

MARKUP = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}${7*7}\r\nSet-Cookie: a=b"
GROUP = "<b>a/b</b>\"'&?x=1#y%2F;"
CLIENT = "'\"><svg onload=alert(3)>"
LARGE = "9" * 30
MANY_DIGITS = "9" * 5000


def commit(k: Kafka, group: str) -> None:
    """Commit an offset as a group with this name."""
    consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": group, "client.id": CLIENT})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 1, "many": 2}, brokers=2) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap, "client.id": CLIENT})
        everything = bytes(range(256))
        headers: list[tuple[str, str | bytes | None]] = [
            (MARKUP, MARKUP.encode()),
            ("k\x00y\u202e", b"\xff\xfe"),
            ("null", None),
            ("producer", MARKUP.encode()),
        ]
        producer.produce("orders", MARKUP.encode(), key=MARKUP.encode(), headers=headers)
        producer.produce("orders", everything, key=everything)
        producer.produce("orders", b'{"a": "' + b"y" * 600_000 + b'"}')
        producer.produce("orders", b"[" * 100_000)
        producer.produce("orders", b"1" * 10_000)
        for number in range(3000):
            producer.produce("many", b'{"n": %d}' % number)
        assert producer.flush(60) == 0
        commit(k, GROUP)
        yield k


@pytest.mark.external
@pytest.mark.parametrize(
    "path",
    [
        f"/topics/orders/messages/0/{LARGE}",
        f"/topics/orders/messages/{LARGE}/0",
        f"/topics/orders/messages/0/{MANY_DIGITS}",
        "/topics/orders/messages/0/-1",
        "/topics/orders/messages/x/y",
        f"/topics/orders/messages?partition={LARGE}",
        f"/topics/orders/messages?partition={MANY_DIGITS}",
        "/topics/orders/messages?partition=²",
        f"/topics/orders/messages?from={LARGE}",
        f"/topics/orders/messages?from={MANY_DIGITS}",
        f"/topics/orders/messages?from=-{MANY_DIGITS}d",
        f"/topics/orders/messages?from=@{MANY_DIGITS}",
        "/topics/orders/messages?limit=0&form=nothing",
        "/topics/orders/messages?form=__class__",
        f"/topics/orders/messages?where=value.a+==+{MANY_DIGITS}",
        f"/topics/orders/messages?where={'(' * 5000}",
        f"/topics/orders/messages?where={'not ' * 2000}value.a exists",
        "/topics/orders/messages?text=(a%2B)%2B%24",
        "/topics/orders/messages?text=(%3F!a)",
        f"/topics/orders/messages?where={quote(MARKUP)}&from={quote(MARKUP)}&text={quote(MARKUP)}&key={quote(MARKUP)}",
        f"/topics/orders/produce?partition={LARGE}&offset={LARGE}",
        f"/topics/{quote(MARKUP, safe='')}",
        f"/topics?search={quote(MARKUP)}&page={MANY_DIGITS}",
        f"/groups?search={quote(MARKUP)}&page=-1&type={quote(MARKUP)}",
        f"/groups/{quote(MARKUP, safe='')}",
        f"/clients?search={quote(MARKUP)}",
        f"/transactions/{quote(MARKUP, safe='')}",
        f"/transactions?topic={quote(MARKUP)}",
        f"/brokers/{LARGE}",
        f"/why/group/{quote(MARKUP, safe='')}",
        f"/why/{quote(MARKUP, safe='')}/x",
        f"/plots/groups/{quote(MARKUP, safe='')}/lag",
        "/topics/%00/messages",
        "/topics/..%2f..%2f/messages",
        "//evil.example/",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
    ],
    ids=lambda path: path[:60],
)
async def test_an_odd_request_is_answered_and_its_text_is_never_markup(brokers: Kafka, path: str) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        response = await browser.client.get(path)
        assert response.status_code < 500, response.text
        assert "<script>alert" not in response.text
        assert "<img src=x" not in response.text
        assert "set-cookie: a=b" not in str(response.headers).lower()
        assert not response.headers.get("location", "/").startswith("//")
        assert "def application" not in response.text


@pytest.mark.external
@pytest.mark.parametrize("offset", range(5))
async def test_records_of_any_bytes_are_shown_without_markup(brokers: Kafka, offset: int) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        for form in ("auto", "json", "text", "avro", "protobuf", "number", "hex", "other"):
            page = await browser.get(f"/topics/orders/messages/0/{offset}?form={form}")
            assert "<script>alert" not in page
            assert "<svg onload" not in page
        listed = await browser.get("/topics/orders/messages?limit=500")
        assert "<script>alert" not in listed
        assert len(listed) < 200_000  # of large values the beginning


@pytest.mark.external
async def test_a_group_with_any_name_has_a_page_and_can_be_reset(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        listed = await browser.get("/groups")
        (link,) = (part.split('"')[0] for part in listed.split('href="')[1:] if part.startswith("/groups/"))
        assert unquote(html.unescape(link)) == f"/groups/{GROUP}"
        page = await browser.get(html.unescape(link))
        assert "<b>a/b" not in page
        after = await browser.carry_out(
            f"{html.unescape(link)}/reset", {"to": "2", "topic": "orders", "partition": "0"}
        )
        assert "Set the offsets of 1 partitions" in html.unescape(after)
        assert (await browser.client.get(f"/why/group/{quote(GROUP, safe='')}")).status_code == 200


@pytest.mark.external
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/topics", {"name": MARKUP, "partitions": LARGE}),
        ("/topics", {"name": "x", "partitions": MANY_DIGITS}),
        ("/topics/orders/partitions", {"partitions": "-1"}),
        ("/topics/orders/produce", {"value": "x", "partition": MANY_DIGITS}),
        ("/topics/orders/produce", {"value": "x", "headers": MARKUP * 50}),
        ("/topics/orders/settings", {"name": MARKUP, "value": MARKUP}),
        ("/topics/orders/transactions/999999999999/0/abort", {}),
        ("/reassignments", {"topic": "orders", "partition": MANY_DIGITS, "replicas": "1"}),
        ("/reassignments", {"topic": "orders", "partition": "0", "replicas": MANY_DIGITS}),
        ("/groups/none/reset", {"to": MANY_DIGITS}),
        ("/quotas", {"user": MARKUP, "name": "producer_byte_rate", "value": "nan"}),
        ("/users", {"name": MARKUP}),
    ],
    ids=range(12),
)
async def test_an_odd_form_is_refused_or_shown_as_text(brokers: Kafka, path: str, fields: dict[str, str]) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        token = await browser.csrf()
        for step in ("", "apply"):
            response = await browser.client.post(path, data={"csrf": token, **fields, "step": step})
            assert response.status_code < 500, response.text
            assert "<script>alert" not in response.text


async def test_a_form_of_another_session_changes_nothing(brokers: Kafka) -> None:
    options = options_for(brokers.bootstrap)
    async with browsing(options) as browser, browsing(options) as other:
        stolen = await other.csrf()
        await browser.csrf()
        fields = {"name": "made", "partitions": "1", "step": "apply"}
        for token in (stolen, "", "é"):
            assert (await browser.client.post("/topics", data={"csrf": token, **fields})).status_code == 403
        assert "made" not in brokers.topics()


async def test_a_fixed_cookie_is_no_session(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        browser.client.cookies.set("ottla_console", "chosen-before", domain="127.0.0.1", path="/")
        await browser.get("/topics")
        assert browser.client.cookies.get("ottla_console", domain="127.0.0.1") != "chosen-before"


async def test_brokers_that_are_away_are_a_page_that_says_so_and_come_back() -> None:
    with kafka(topics={"orders": 1}, brokers=2) as k:
        k.produce("orders", "x")
        async with browsing(options_for(k.bootstrap)) as browser:
            await browser.get("/topics/orders/messages")
            k.down(2)
            browser.console.workspace.changed()
            assert "does not" in html.unescape(await _page(browser, "/")) or "not registered" in await _page(
                browser, "/"
            )
            k.up(2)
            browser.console.workspace.changed()
            assert "not registered" not in await _page(browser, "/")


async def _page(browser: Browser, path: str) -> str:
    response = await browser.client.get(path)
    assert response.status_code in {200, 503}, response.text
    return response.text


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.skipif(chromium.executable() is None, reason=chromium.NOT_THERE)
def test_no_text_of_records_groups_or_requests_runs_in_chromium(brokers: Kafka) -> None:
    with served(options_for(brokers.bootstrap)) as url, chromium.chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        dialogs: list[str] = []

        def seen(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", seen)
        for path in (
            "/topics/orders/messages",
            "/topics/orders/messages/0/0",
            "/topics/orders/messages/0/1",
            f"/topics/orders/messages?where={quote(MARKUP)}&text={quote(MARKUP)}",
            "/groups",
            f"/groups/{quote(GROUP, safe='')}",
            f"/topics?search={quote(MARKUP)}",
        ):
            page.goto(url + path)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        page.goto(f"{url}/topics/orders/messages")
        page.get_by_role("button", name="Follow live").click()
        page.get_by_text("follows", exact=True).wait_for()
        brokers.produce("orders", MARKUP, key=MARKUP)
        page.wait_for_selector(".live-tail tbody tr", timeout=30_000)
        assert not dialogs
        assert page.locator("main script, main img[src=x], main svg[onload]").count() == 0
