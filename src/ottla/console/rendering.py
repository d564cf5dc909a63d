"""Fills the templates of `templates/`, with every value escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ottla.console import texts

HERE: Final = Path(__file__).parent
_WIDTH, _HEIGHT = 96, 24


def environment() -> Environment:
    """Return the environment of the templates."""
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., object]] = {
        "number": texts.number,
        "size": texts.size,
        "duration": texts.duration,
        "time": texts.time,
        "path": lambda text: quote(str(text), safe=""),
        "sparkline": sparkline,
    }
    env.filters.update(filters)
    env.globals["percent"] = texts.percent
    return env


def sparkline(values: Sequence[float | None]) -> Markup:
    """Draw the course of some values as a small line, for a cell of a table; nothing of fewer than two."""
    known = [value for value in values if value is not None][-48:]
    if len(known) < 2:
        return Markup("")
    low, high = min(known), max(known)
    span = (high - low) or 1
    step = _WIDTH / (len(known) - 1)
    points = " ".join(
        f"{at * step:.1f},{_HEIGHT - 2 - (value - low) / span * (_HEIGHT - 4):.1f}" for at, value in enumerate(known)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true"><polyline points="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, points)


def render(env: Environment, template: str, **values: Any) -> str:
    """Return a page."""
    return env.get_template(template).render(**values)
