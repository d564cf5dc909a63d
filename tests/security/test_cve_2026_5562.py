"""CVE-2026-5562: as CVE-2023-52251, by the filter of the page that reads messages; here on all ways in."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing import kafka
from tests.processes.cli_runner import Cli
from tests.security.test_cve_2023_52251 import EVIL
from tests.support.console import browsing, options_for


async def test_a_page_of_the_console_refuses_what_is_no_condition() -> None:
    with kafka(topics={"orders": 1}) as brokers:
        async with browsing(options_for(brokers.bootstrap)) as browser:
            for text in EVIL:
                response = await browser.client.get("/topics/orders/messages", params={"where": text})
                assert "the condition cannot be read" in response.text, text
                assert "at position" in response.text


@pytest.mark.parametrize("option", ["--where"])
def test_a_command_refuses_what_is_no_condition(tmp_path: Path, option: str) -> None:
    cli = Cli("127.0.0.1:1", tmp_path)
    planted = tmp_path / "planted"
    text = f"__import__('pathlib').Path({str(planted)!r}).touch()"
    assert "position" in cli.fails("consume", "orders", option, text, code=2)
    assert not planted.exists()
