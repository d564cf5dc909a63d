"""A console before the brokers of a test, asked by httpx or, with `served`, by a browser."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import httpx

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.console.app import application
from ottla.console.options import LOOPBACK, ConsoleOptions
from ottla.console.workspace import Connect
from ottla.http.address import HttpAddress
from ottla.http.listener import HttpListener

HTML = {"accept": "text/html"}
BASE = "http://127.0.0.1:8080"


def connect_to(bootstrap: str, options: ClientOptions | None = None) -> Connect:
    async def connect() -> Cluster:
        return await Cluster.connect(parse_addresses(bootstrap), options=options)

    return connect


def options_for(bootstrap: str, **changed: Any) -> ConsoleOptions:
    made = ConsoleOptions(connect=connect_to(bootstrap), hosts=LOOPBACK, sample_every_s=3600)
    return replace(made, **changed)


class Browser:
    """Loads pages and sends their forms, without JavaScript."""

    def __init__(self, client: httpx.AsyncClient, app: Any) -> None:
        self.client, self.app = client, app

    @property
    def console(self) -> Any:
        return self.app._app.state.console

    async def get(self, path: str, status: int = 200) -> str:
        response = await self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    async def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.client.get("/topics")).text)
        assert found is not None
        return found[1]

    async def post(self, path: str, fields: Mapping[str, str], status: int = 200) -> str:
        token = await self.csrf()
        response = await self.client.post(path, data={"csrf": token, **fields})
        assert response.status_code == status, response.text
        return response.text

    async def carry_out(self, path: str, fields: Mapping[str, str], **typed: str) -> str:
        """See the preview, do it, and return the page that follows."""
        preview = await self.post(path, fields)
        assert "Nothing has been changed yet." in preview
        response = await self.client.post(path, data={"csrf": await self.csrf(), **fields, "step": "apply", **typed})
        assert response.status_code == 303, response.text
        return await self.get(response.headers["location"])


@asynccontextmanager
async def browsing(options: ConsoleOptions) -> AsyncIterator[Browser]:
    """A browser of a console in this loop."""
    app = application(options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=HTML) as client:
        browser = Browser(client, app)
        try:
            yield browser
        finally:
            await browser.console.close()


@contextmanager
def served(options: ConsoleOptions, *, port: int = 0) -> Iterator[str]:
    """The URL of a console that listens, in a thread of its own."""
    listener = HttpListener(HttpAddress("127.0.0.1", port), console=application(options))
    listener.start()
    try:
        yield listener.address.url
    finally:
        stopping = threading.Thread(target=lambda: asyncio.run(listener.stop()))  # playwright has a loop in this one
        stopping.start()
        stopping.join()
