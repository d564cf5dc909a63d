"""Compiles the regular expressions of searches, so that none takes more than linear time.

RE2 is linear whatever the expression is. Without it (the extra `standard`) Python's `re` searches, and an expression
that could make it backtrack is refused: only plain characters, classes and anchors, with `|` between whole
alternatives, are searched in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec

from ottla.core.regexes import InvalidRegex, compile_regex

Search = Callable[[bytes], bool]
_IGNORE_CASE = "(?i)"
_WITHOUT_BACKTRACKING = re.compile(r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[*+?{}()])*", re.DOTALL)


def compile_search(pattern: str) -> Search:
    """Return whether a text in UTF-8 contains a match. Raises `InvalidRegex`.

    >>> compile_search("er+or")(b"an error")
    True
    """
    if find_spec("re2") is not None:
        search = compile_regex(pattern).search
        return lambda text: search(text) is not None
    try:
        compiled = re.compile(pattern.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise InvalidRegex(str(error)) from None
    if not _is_linear(pattern):
        raise InvalidRegex("without RE2 (the extra `standard`) an expression has no groups and no * + ? {}")
    return lambda text: compiled.search(text) is not None


def _is_linear(pattern: str) -> bool:
    r"""Return whether Python's `re` searches a pattern without backtracking.

    >>> [_is_linear(text) for text in ("^a[+*]b|c$", "(?i)err", r"a\+", "a*", "(a|a)", "[]+]x")]
    [True, True, True, False, False, True]
    """
    return _WITHOUT_BACKTRACKING.fullmatch(pattern.removeprefix(_IGNORE_CASE)) is not None
