"""CVE-2024-36543: a management REST API without access control; here each HTTP port has a sign-in, or is on loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.broker.config import read
from ottla.broker.http_endpoint import http_address
from ottla.cli.server_console import ConsoleCompanion
from ottla.console.pages import PAGES
from ottla.console.passwords import PasswordFile, hash_password
from ottla.core.settings import InvalidSettings
from tests.processes.cli_runner import Cli
from tests.support.console import browsing, options_for

TOKEN = {"OTTLA_OTTLA_HTTP_TOKEN": "s3"}
ELSEWHERE = ["0.0.0.0:9644", ":9644", "[::]:9644", "192.0.2.1:9644", "[::ffff:192.0.2.1]:9644"]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_broker_serves_http_elsewhere_than_on_loopback_with_tls_and_a_token_only(address: str) -> None:
    for scheme, environment in (("", {}), ("", TOKEN), ("http://", TOKEN), ("https://", {})):
        config, _ = read(file=None, environment=environment, options={"ottla.http.listener": scheme + address})
        with pytest.raises(InvalidSettings, match=r"everybody who reaches this address|must be host:port"):
            http_address(config)
    config, _ = read(file=None, environment=TOKEN, options={"ottla.http.listener": f"https://{address}"})
    assert http_address(config) is not None


@pytest.mark.parametrize("address", ["127.0.0.1:9644", "localhost:9644", "[::1]:9644"])
def test_on_loopback_it_needs_neither(address: str) -> None:
    config, _ = read(file=None, environment={}, options={"ottla.http.listener": address})
    assert http_address(config) is not None


def test_the_console_of_a_broker_is_on_loopback_unless_its_clients_sign_in() -> None:
    options = {"ottla.http.listener": "https://0.0.0.0:9644", "listeners": "PLAINTEXT://127.0.0.1:0"}
    config, _ = read(file=None, environment=TOKEN, options=options)
    with pytest.raises(InvalidSettings, match="everybody who reaches it could use the console"):
        ConsoleCompanion(config)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "https://0.0.0.0:0", ":0", "192.0.2.1:0"])
def test_a_console_elsewhere_has_a_sign_in(tmp_path: Path, address: str) -> None:
    said = Cli("127.0.0.1:1", tmp_path).fails("console", "--listen", address, code=2)
    assert "could use the console" in said
    assert "--users" in said


async def test_each_page_of_the_console_is_for_those_who_have_signed_in(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"alice:{hash_password('open sesame')}\n")
    async with browsing(options_for("127.0.0.1:1", users=PasswordFile.read(users))) as browser:
        assert len(PAGES) > 30
        for page in PAGES:
            if page.is_sign_in:
                continue
            path = re.sub(r"{[^}]*}", "1", page.path)
            response = await browser.client.request(page.method, path)
            expected = {303} if page.method == "GET" else {403}
            assert response.status_code in expected, page.path
            if page.method == "GET":
                assert response.headers["location"] == "/sign-in"
