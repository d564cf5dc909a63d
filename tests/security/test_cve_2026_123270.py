"""CVE-2026-123270: an HTTP API without sign-in let anybody give it work to run. Here what changes something needs a token."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from typing import Any, get_type_hints

import httpx
import pytest

from ottla.console.pages import PAGES
from ottla.http.guard import Guard
from ottla.http.guarded_app import GuardedApp
from ottla.http.web import Receive, Scope, Send, json_response
from ottla.testing import Kafka, kafka
from ottla.testing.kit.control_api.operations import OPERATIONS, Control
from ottla.testing.kit.control_api.server import serve_control_api
from tests.support.console import browsing, options_for

METHODS = ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
URL = "http://127.0.0.1:9999"


class Application:
    """Notes whether a request came through."""

    def __init__(self) -> None:
        self.served: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served.append(scope["method"])
        await json_response("served")(scope, receive, send)


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL)


@pytest.mark.parametrize("token", ["", "s3"])
@pytest.mark.parametrize("reading", [True, False])
async def test_a_method_that_may_change_something_needs_the_token(token: str, reading: bool) -> None:
    behind = Application()
    async with client(GuardedApp(behind, Guard(token, reading_needs_token=reading))) as http:
        for method in METHODS:
            for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer s4"}, {"authorization": "s3"}):
                assert (await http.request(method, "/x", headers=headers)).status_code in {401, 403}, method
        assert not behind.served
        if token:
            assert (await http.post("/x", headers={"authorization": "Bearer s3"})).status_code == 200


@pytest.fixture(scope="module")
def brokers() -> Any:
    with kafka(topics={"orders": 1}) as started:
        yield started


async def test_no_operation_of_the_control_api_runs_without_its_token(brokers: Kafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, stop = listener.getsockname()[1], asyncio.Event()
        serving = asyncio.create_task(serve_control_api(Control(brokers), listener, "s3", stop=stop))
        await _try_each_operation(port)
        stop.set()
        await serving


async def _try_each_operation(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for each in OPERATIONS:
            path = each.path.replace("{", "").replace("}", "")
            assert (await http.request(each.method, path)).status_code == 401, each.path
            forged = {"authorization": "Bearer s3", "host": f"evil.example:{port}"}
            assert (await http.request(each.method, path, headers=forged)).status_code == 403, each.path
        assert (await http.get("/cluster", headers={"authorization": "Bearer s3"})).status_code == 200


def test_no_operation_takes_code_a_command_or_a_path_of_a_file() -> None:
    words = {"command", "code", "script", "expression", "module", "function", "file", "directory", "url", "class"}
    assert len(OPERATIONS) > 20
    for each in OPERATIONS:
        names = set(inspect.signature(each.run).parameters) | set(get_type_hints(each.run))
        assert not names & words, each.path


async def test_each_form_of_the_console_needs_the_token_of_its_session(brokers: Kafka) -> None:
    forms = [page for page in PAGES if page.method == "POST"]
    assert len(forms) > 10
    async with browsing(options_for(brokers.bootstrap, may_change=True)) as browser:
        await browser.get("/topics")  # there is a session
        for page in forms:
            path = re.sub(r"{[^}]*}", "1", page.path)
            for csrf in ({}, {"csrf": ""}, {"csrf": "x" * 43}):
                assert (await browser.client.post(path, data=csrf)).status_code == 403, page.path
