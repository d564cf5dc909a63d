"""Declares a page: its path, and the function that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ottla.console.visit import Visit
from ottla.http.web import Response


@dataclass(frozen=True, slots=True)
class Page:
    """A page or an action. Only a POST changes anything, and only where the console may change something."""

    path: str
    answer: Callable[[Visit], Awaitable[Response]]
    method: str = "GET"
    is_sign_in: bool = False
    """Whether it is for those who have not signed in, and changes nothing but the session."""
