"""One request of a browser, with what a page needs: the session, the connections, and how to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment

from ottla.client.cluster import Cluster
from ottla.console import cli_lines
from ottla.console.options import ConsoleOptions
from ottla.console.reasons import Reasons
from ottla.console.rendering import render
from ottla.console.sessions import Session, Sessions
from ottla.console.snapshot import Snapshot
from ottla.console.workspace import Workspace
from ottla.core.settings import LONG_MAX
from ottla.http.web import FormData, HTMLResponse, RedirectResponse, Request, Response


class Refused(Exception):
    """Reports to the browser why a request is not carried out."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status


INT_MAX: Final = (1 << 31) - 1


def whole_number(text: str, most: int = LONG_MAX) -> int | None:
    """Read a number of a request; None for anything else, and for a larger one.

    >>> whole_number("12"), whole_number("12", most=11), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None, None)
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    return int(digits) if int(digits) <= most else None


@dataclass(slots=True)
class Visit:
    """A request. `form` is empty unless it is a POST, whose token was checked."""

    request: Request
    options: ConsoleOptions
    session: Session
    workspace: Workspace
    templates: Environment
    form: FormData
    sessions: Sessions

    @property
    def may_change(self) -> bool:
        """Whether the buttons that change something are shown, and work."""
        return self.options.may_change

    @property
    def root(self) -> str:
        """The path that the console is mounted at; empty for the root."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    async def cluster(self) -> Cluster:
        """Return the client, with the rights of this request. Raises CannotConnect or KafkaError."""
        return await self.workspace.cluster()

    async def snapshot(self) -> Snapshot:
        """Return the state of the cluster. Raises CannotConnect or KafkaError."""
        return await self.workspace.snapshot()

    @property
    def reasons(self) -> Reasons:
        """The explanations of what is not well."""
        return Reasons()

    def path(self, name: str) -> str:
        """Return a part of the request's path."""
        return str(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        """Return a value of the query."""
        return self.request.query_params.get(name, default)

    def field(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        value = self.form.get(name, default)
        return value if isinstance(value, str) else default

    def cli(self, *words: str | int) -> str:
        """Return the command line for the same cluster."""
        return cli_lines.line(*words, *self.options.profile_words)

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Answer with a page."""
        values = {
            "visit": self,
            "root": self.root,
            "session": self.session,
            "may_change": self.may_change,
            "cluster_name": self.options.cluster_name,
            "path_now": self.request.url.path,
            "query": self.request.query_params,
            "notice": self.session.take_notice(),
            **values,
        }
        return HTMLResponse(render(self.templates, template, **values), status)

    def go_to(self, path: str, notice: str = "") -> Response:
        """Answer that the browser loads a page of the console, which shows the sentence."""
        self.session.notice = notice
        return RedirectResponse(self.root + path, 303)
