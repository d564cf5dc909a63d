"""Puts the console together as an ASGI application: routes, sessions, errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from ottla.client.errors import CannotConnect
from ottla.console.guard import Guard
from ottla.console.options import ConsoleOptions
from ottla.console.pages import PAGES, Page
from ottla.console.rendering import HERE, environment
from ottla.console.sessions import COOKIE, Session, Sessions
from ottla.console.visit import Refused, Visit
from ottla.console.workspace import Workspace
from ottla.core.errors import KafkaError
from ottla.http.web import (
    ASGIApp,
    FormData,
    HTTPException,
    Mount,
    PlainTextResponse,
    RedirectResponse,
    Request,
    Response,
    Route,
    Starlette,
    StaticFiles,
)

log = logging.getLogger(__name__)

_FIELDS_MAX = 200


class Console:
    """The state of a console: sessions, and the connections with the rights of its profile."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.sessions = Sessions()
        self.workspace = Workspace(options.connect, sample_every_s=options.sample_every_s)
        self._templates = environment()

    async def start(self) -> None:
        """Begin to take samples, unless each user has connections of its own."""
        if self.options.connect_as is None:
            self.workspace.start()

    async def close(self) -> None:
        """Close all connections."""
        await self.sessions.close()
        await self.workspace.close()

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page: finds the session, checks the form, and shows errors."""

        async def answer(request: Request) -> Response:
            session = await self.sessions.get(request.cookies.get(COOKIE))
            is_new = session is None
            session = session or await self.sessions.begin()
            form = await request.form(max_fields=_FIELDS_MAX, max_files=0) if request.method == "POST" else FormData()
            visit = self._visit(request, session, form)
            token = session.token
            try:
                response = await self._answer(page, visit)
            except Refused as error:
                response = visit.page("error.html", status=error.status, title="Refused", message=error.message)
            except KafkaError as error:
                response = visit.page(
                    "error.html", status=400, title=error.code.name, message=error.message or str(error)
                )
            except CannotConnect as error:
                response = visit.page("error.html", status=503, title="Cannot connect", message=str(error))
            except Exception:
                log.exception("a page failed: %s %s", request.method, page.path)
                why = "The console failed to make this page. Its log says why."
                response = visit.page("error.html", status=500, title="Failed", message=why)
            if is_new or visit.session.token != token:
                _set_cookie(response, visit.session, is_https=self.options.is_https)
            return response

        return answer

    def _visit(self, request: Request, session: Session, form: FormData) -> Visit:
        workspace = session.workspace or self.workspace
        return Visit(request, self.options, session, workspace, self._templates, form, self.sessions)

    async def _answer(self, page: Page, visit: Visit) -> Response:
        request = visit.request
        if request.method == "POST" and not visit.session.is_csrf(visit.field("csrf")):
            raise Refused("the form is not of this session, or the session is over: load the page again", 403)
        if self.options.requires_sign_in and not visit.session.user and not page.is_sign_in:
            if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse(f"{visit.root}/sign-in", 303)
            raise Refused("sign in first", 401)
        if request.method == "POST" and not page.is_sign_in and not self.options.may_change:
            raise Refused("this console is read-only; start it with --allow-changes", 403)
        return await page.answer(visit)


def _set_cookie(response: Response, session: Session, *, is_https: bool) -> None:
    response.set_cookie(COOKIE, session.token, path="/", httponly=True, samesite="lax", secure=is_https)


def application(options: ConsoleOptions) -> ASGIApp:
    """Return the console as an ASGI application, whose lifespan opens and closes the connections."""
    console = Console(options)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await console.start()
        try:
            yield
        finally:
            await console.close()

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != 404:
            return PlainTextResponse(error.detail + "\n", error.status_code)

        async def answer(visit: Visit) -> Response:
            return visit.page("error.html", status=404, title="Not found", message="There is no such page.")

        return await console.endpoint(Page("", answer))(request)

    routes = [Route(page.path, console.endpoint(page), methods=[page.method]) for page in PAGES]
    static = Mount("/static", StaticFiles(directory=HERE / "static"))
    app = Starlette(routes=[*routes, static], lifespan=lifespan, exception_handlers={HTTPException: not_found})
    app.state.console = console
    return Guard(app, options.hosts)
