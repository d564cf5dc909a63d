"""Planting a bug: one function is replaced for as long as a suite runs, and it must be there and must be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support import form

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Given the function as it is, the function with the bug in it."""


class Patch(NamedTuple):
    """Where a bug goes."""

    owner: object  # a class or a module
    name: str
    make: Make


class Bug(NamedTuple):
    """One bug, who must find it, and with which seed it was found."""

    name: str
    what: str  # in the words of the one who makes the mistake
    suite: str  # a key of `suites.SUITES`
    patches: tuple[Patch, ...]
    seed: int = 1
    within: int = 400  # states, or examples, that the suite may need
    quick: bool = True  # found in about a second: looked for in every run of the tests


class CannotApply(Exception):
    """The function to be replaced is not there any more, or nothing calls it: the bug proves nothing."""


@dataclass
class Effect:
    """How often the bug was met."""

    calls: dict[str, int] = field(default_factory=dict)


@contextmanager
def applied(bug: Bug) -> Iterator[Effect]:
    """The bug is there within."""
    if form.is_compiled():
        raise CannotApply("the compiled form does not look functions up: plant bugs with OTTLA_PLAIN=1")
    effect = Effect()
    undo: list[tuple[Any, str, Any]] = []
    try:
        for patch in bug.patches:
            before = inspect.getattr_static(patch.owner, patch.name, None)
            function = before.__func__ if isinstance(before, classmethod | staticmethod) else before
            if patch.name not in vars(patch.owner) or not callable(function):
                raise CannotApply(f"{bug.name}: there is no function {patch.name} in {patch.owner}")
            undo.append((patch.owner, patch.name, before))
            setattr(patch.owner, patch.name, _counted(patch.make(function), patch.name, effect, before))
        yield effect
    finally:
        for owner, name, before in reversed(undo):
            setattr(owner, name, before)


def _counted(buggy: Callable[..., Any], name: str, effect: Effect, before: object) -> Any:
    effect.calls[name] = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        effect.calls[name] += 1
        return buggy(*args, **kwargs)

    if isinstance(before, staticmethod):
        return staticmethod(counted)
    return classmethod(counted) if isinstance(before, classmethod) else counted
