"""The pages of the console, of brokers in this process."""

import re
from collections.abc import Iterator

import pytest

from ottla.testing import Kafka, kafka
from tests.support.console import browsing, options_for


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 3, "empty": 1}, brokers=2) as k:
        for number in range(20):
            k.produce("orders", f'{{"amount": {number}}}', key=f"k{number}", headers=[("producer", "shop")])
        yield k


PAGES = (
    "/",
    "/brokers/1",
    "/topics",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/messages/0/0",
    "/topics/orders/producers?partition=0",
    "/topics/orders/produce",
    "/topics/orders/groups",
    "/topics/orders/settings?all=1",
    "/groups",
    "/transactions",
    "/transactions?topic=orders",
    "/why/topic/orders",
    "/why/broker/1",
    "/doctor",
    "/reassignments",
    "/acls",
    "/users",
    "/quotas",
    "/plots/cluster/records",
    "/plots/topics/orders/bytes",
    "/plots/groups/none/lag",
)


@pytest.mark.parametrize("path", PAGES)
async def test_each_page_is_shown(brokers: Kafka, path: str) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        await browser.get(path)


async def test_the_map_shows_brokers_with_leaders_and_disks(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.get("/")
        assert "Broker 1" in page
        assert "Broker 2" in page
        assert "controller" in page


async def test_topics_are_searched_by_a_part_of_their_name(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.get("/topics?search=ord")
        assert "/topics/orders" in page
        assert "/topics/empty" not in page
        assert "No topic has" in await browser.get("/topics?search=nothing-of-it")


async def test_a_topic_that_is_not_there_is_not_found(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        assert "there is no topic nope" in await browser.get("/topics/nope", 404)
        assert "There is no such page" in await browser.get("/nope", 404)


async def test_settings_are_shown_with_their_source_and_synonyms(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.get("/topics/orders/settings?search=cleanup.policy")
        assert "cleanup.policy" in page
        assert "log.cleanup.policy = delete" in page


@pytest.mark.parametrize(
    ("query", "amounts"),
    [
        ("where=value.amount >= 18", {18, 19}),
        ("key=k7", {7}),
        ("text=amount...1[57]", {15, 17}),
        ("from=start&where=value.amount in (1, 2)", {1, 2}),
        ("from=start&partition=0&key=k7&where=value.amount == 8", set()),
    ],
)
async def test_messages_are_searched(brokers: Kafka, query: str, amounts: set[int]) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.get(f"/topics/orders/messages?{query}")
        assert {int(text) for text in re.findall(r"<pre>\{\s*&#34;amount&#34;: (\d+)\s*\}</pre>", page)} == amounts


@pytest.mark.parametrize("query", ["where=value.amount >", "text=(", "from=whenever", "partition=99"])
async def test_a_search_that_cannot_be_read_says_why(brokers: Kafka, query: str) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        assert 'role="alert"' in await browser.get(f"/topics/orders/messages?{query}")


async def test_a_record_is_shown_with_its_parts(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.get("/topics/orders/messages/0/0")
        assert "shop" in page
        assert "ottla consume orders --partition 0 --from 0 --count 1 --format json" in page
        assert "OFFSET_OUT_OF_RANGE" in await browser.get("/topics/orders/messages/0/999999", 400)


async def test_values_cannot_become_a_part_of_the_page(brokers: Kafka) -> None:
    script = "<script>alert(1)</script>"
    brokers.create_topic("hostile")
    brokers.produce("hostile", script, key=script, headers=[(script, script)])
    async with browsing(options_for(brokers.bootstrap)) as browser:
        for path in ("/topics/hostile/messages", "/topics/hostile/messages/0/0", f"/topics?search={script}"):
            response = await browser.client.get(path)
            assert script not in response.text
            assert "default-src 'none'; script-src 'self'" in response.headers["content-security-policy"]


async def test_requests_share_one_snapshot(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        for path in ("/", "/topics", "/groups", "/topics/orders", "/"):
            await browser.get(path)
        assert browser.console.workspace.readings == 1


async def test_a_page_names_the_same_command_line(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap, profile_words=("--profile", "staging"))) as browser:
        assert "ottla topic describe orders --profile staging" in await browser.get("/topics/orders")
