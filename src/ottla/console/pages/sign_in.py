"""Signs people in and out: with a password of the file, or with their credentials of the brokers (SASL)."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.client.errors import CannotConnect
from ottla.console.pages.page import Page
from ottla.console.passwords import PASSWORD_MAX
from ottla.console.sessions import Session
from ottla.console.visit import Refused, Visit
from ottla.console.workspace import Workspace
from ottla.core.errors import KafkaError
from ottla.http.web import RedirectResponse, Response

_AT_ONCE: Final = asyncio.Semaphore(4)
"""Hashing a password takes memory and time: so many at a time."""
_PAUSE_S: Final = 0.3


async def form(visit: Visit) -> Response:
    """Show the form."""
    return visit.page(
        "sign_in.html", title="Sign in", problem="", user="", is_sasl=visit.options.connect_as is not None
    )


async def sign_in(visit: Visit) -> Response:
    """Check name and password; the session is a new one afterwards."""
    name, password = visit.field("user"), visit.field("password")[:PASSWORD_MAX]
    problem, workspace = "The name or the password is wrong.", None
    async with _AT_ONCE:
        if visit.options.users is not None and await asyncio.to_thread(visit.options.users.is_right, name, password):
            problem = ""
        elif visit.options.connect_as is not None and name:
            workspace = Workspace(visit.options.connect_as(name, password), sample_every_s=visit.options.sample_every_s)
            problem = await _why_refused(workspace)
    if problem:
        if workspace is not None:
            await workspace.close()
        await asyncio.sleep(_PAUSE_S)
        return visit.page(
            "sign_in.html",
            status=401,
            title="Sign in",
            problem=problem,
            user=name,
            is_sasl=visit.options.connect_as is not None,
        )
    await visit.sessions.end(visit.session)
    visit.session = await signed_in(visit, name, workspace)
    return visit.go_to("/")


async def signed_in(visit: Visit, name: str, workspace: Workspace | None) -> Session:
    """Begin the session of a user."""
    session = await visit.sessions.begin()
    session.user, session.workspace = name, workspace
    if workspace is not None:
        workspace.start()
    return session


async def _why_refused(workspace: Workspace) -> str:
    """Connect with the credentials; return why that fails, empty if it does not."""
    try:
        await workspace.cluster()
    except CannotConnect as error:
        return f"The brokers cannot be reached: {error}"
    except KafkaError:
        return "The brokers refuse this name or password."
    return ""


async def to_provider(visit: Visit) -> Response:
    """Send the browser to the OIDC provider."""
    from ottla.console.oidc import SignInFailed

    if visit.options.oidc is None:
        raise Refused("this console has no OIDC provider", 404)
    try:
        return RedirectResponse(await visit.options.oidc.begin(visit.session.pending), 303)
    except SignInFailed as error:
        raise Refused(f"The sign-in failed: {error}", 502) from None


async def callback(visit: Visit) -> Response:
    """Take the answer of the OIDC provider that the browser brings."""
    from ottla.console.oidc import SignInFailed

    if visit.options.oidc is None:
        raise Refused("this console has no OIDC provider", 404)
    try:
        name = await visit.options.oidc.end(dict(visit.request.query_params), visit.session.pending)
    except SignInFailed as error:
        raise Refused(f"The sign-in failed: {error}", 401) from None
    await visit.sessions.end(visit.session)
    visit.session = await signed_in(visit, name, None)
    return visit.go_to("/")


async def sign_out(visit: Visit) -> Response:
    """End the session."""
    await visit.sessions.end(visit.session)
    visit.session = await visit.sessions.begin()
    return visit.go_to("/sign-in" if visit.options.requires_sign_in else "/")


async def sign_out_at_provider(visit: Visit) -> Response:
    """Send the browser to where the OIDC provider ends its session, or say that it has no such place."""
    from ottla.console.oidc import SignInFailed

    if visit.options.oidc is None:
        raise Refused("this console has no OIDC provider", 404)
    try:
        url = await visit.options.oidc.sign_out_url(visit.options.oidc.redirect_uri.removesuffix("/callback"))
    except SignInFailed as error:
        raise Refused(f"{error}", 502) from None
    return RedirectResponse(url, 303) if url else visit.go_to("/sign-in", "The provider has no page to sign out at.")


PAGES = (
    Page("/sign-in", form, is_sign_in=True),
    Page("/sign-in", sign_in, "POST", is_sign_in=True),
    Page("/sign-in/oidc", to_provider, is_sign_in=True),
    Page("/sign-in/callback", callback, is_sign_in=True),
    Page("/sign-out/provider", sign_out_at_provider, is_sign_in=True),
    Page("/sign-out", sign_out, "POST", is_sign_in=True),
)
