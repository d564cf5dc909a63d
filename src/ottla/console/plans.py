"""Shows what an action will do before it is done, with the same command line; then does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.console.visit import Visit
from ottla.http.web import Response

STEP, APPLY = "step", "apply"


@dataclass(frozen=True, slots=True)
class Plan:
    """An action that is not done yet: `apply` does it, and returns a sentence about that."""

    title: str
    cli: str
    back: str  # the path of the page to show afterwards
    apply: Callable[[], Awaitable[str]]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    note: str = ""
    button: str = "Apply"
    is_danger: bool = False
    confirmation: str = ""
    """A text that must be typed."""
    secrets: Sequence[str] = ()
    """The names of fields that are not written into the page; they are asked for again."""


async def carry_out(visit: Visit, plan: Plan) -> Response:
    """Answer the first POST of a form with the preview, and the second one by doing it."""
    if visit.field(STEP) != APPLY:
        hidden = [
            (name, value)
            for name, value in visit.form.multi_items()
            if isinstance(value, str) and name not in {STEP, "csrf", *plan.secrets}
        ]
        return visit.page("confirm.html", title=plan.title, plan=plan, hidden=hidden)
    message = await plan.apply()
    visit.workspace.changed()
    return visit.go_to(plan.back, message)
