"""Checks prose for words that are not plain technical English; see CONTRIBUTING.md, "Language".

Reads the comments, docstrings, string literals and names of Python sources (outside of src only the names of functions
and classes), and the whole text of the Markdown pages, pyproject.toml and the Makefile. Prints each hit as
`file:line: word: use ...` and exits with 1 if there is one.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "tests/README.md", "examples/README.md", "pyproject.toml", "Makefile")
SOURCES = ("src/**/*.py", "tests/**/*.py", "tools/*.py", "benchmarks/*.py", "hatch_build.py")
SKIPPED = ("src/ottla/wire/generated/", "tools/check_words.py")

WORDS = {
    r"\bbehind\b": "after, beyond; for consumers: lag",
    r"\bin front of\b": "before",
    r"\banew\b": "again, from scratch; rebuild, recreate",
    r"\bnobody\b": "no client, no caller, nothing",
    r"\bsomebody\b": "a client, a caller",
    r"\bwhoever\b": "the client that, the caller that",
    r"\b(tells?|told|telling)\b": "report, return, log, inform, show",
    r"\b(lies|lay|lying) (there|on|in|at|below|above|beside|within)\b": "is, are, is stored",
    r"\bstands? (there|in the|beside|where|at)\b": "is, are",
    r"\bwhat of\b": "the part of ... that",
    r"\brooms?\b(?! (left|for|in|on|to|enough))": "package; for free space: space",
    r"\bthe picture\b": "the snapshot",
    r"\bstations?\b": "step",
    r"\brot(s|ten|ting)?\b": "corrupt, corruption",
    r"\bharm(s|ed|ing)?\b": "corrupt",
    r"(?<![`])damag(e|es|ed|ing)?\b": "corrupt, corruption",
    r"\blook(s|ed|ing)? into\b": "validate, inspect, examine",
    r"\btaken? back\b": "restore, revert, undo",
    r"\bgone bad\b": "is corrupt",
    r"\btaking[ _]up\b": "load, open",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\bmoves? (a |no |only )?wheels?\b": "option",
    r"(?<!--no-)(?<!--)(?<!default: )(?<![\"])\bbooks\b(?!( (do not )?balance| = |\.json))": "audit",
    r"\bstor(y|ies)\b": "scenario",
    r"\bdoors?\b": "listener, port, entry point",
    r"\bjourneys?\b": "path",
}
WORDS_OF_PYTHON = {
    r"\bstretch(es|ed)?\b": "range, region, extent; of time: period",
    r"\bpromis(e|es|ed|ing)\b": "checkpointed, guaranteed, documented",
    r"\bvouch(es|ed)?\b": "confirm, record",
}
"""These words are looked for in Python sources alone."""

FOREIGN_NAMES = frozenset({"tell", "books"})  # a file's method, and an option of the command line


# The boundary that all have in common is first, once: most places fail there, in an eighth of the time.
def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(f'(?P<w{index}>{word})' for index, word in enumerate(words))})", re.IGNORECASE)


PATTERN = _pattern(WORDS)
PATTERN_OF_PYTHON = _pattern((*WORDS, *WORDS_OF_PYTHON))
ADVICE = [*WORDS.values(), *WORDS_OF_PYTHON.values()]


def hits(text: str, pattern: re.Pattern[str] = PATTERN) -> Iterator[tuple[int, str, str]]:
    """Yield the offset of each unwanted word in `text`, the word, and what to write instead."""
    for match in pattern.finditer(text):
        assert match.lastgroup is not None
        yield match.start(), match.group(), ADVICE[int(_outer(match)[1:])]


def _outer(match: re.Match[str]) -> str:
    return next(name for name, value in match.groupdict().items() if value is not None)


def prose_of(source: str, *, all_names: bool) -> Iterator[tuple[int, str]]:
    """Yield the comments and strings of Python source, and the names that it defines or all names, with their lines."""
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            yield token.start[0], token.string
        elif (
            token.type == tokenize.NAME
            and token.string not in FOREIGN_NAMES
            and (all_names or previous in ("def", "class"))
        ):
            yield token.start[0], token.string.replace("_", " ")
        previous = token.string


def check(path: Path) -> Iterator[str]:
    """Yield one line for each unwanted word of a file."""
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    is_python = path.suffix == ".py"
    pattern = PATTERN_OF_PYTHON if is_python else PATTERN
    if not pattern.search(text.replace("_", " ")):
        return  # nothing in code or in prose: no need to separate them
    parts = prose_of(text, all_names=name.startswith("src/")) if is_python else enumerate(text.splitlines(), start=1)
    for line, part in parts:
        for offset, word, advice in hits(part, pattern):
            number = line + part.count("\n", 0, offset)
            yield f"{name}:{number}: {word!r}: use {advice}"


def main() -> int:
    """Check the named files, or all."""
    named = [Path(name).resolve() for name in sys.argv[1:]]
    paths = named or sorted({path for pattern in (*PAGES, *SOURCES) for path in ROOT.glob(pattern)})
    kept = [path for path in paths if not str(path.relative_to(ROOT)).startswith(SKIPPED)]
    found = [line for path in kept for line in check(path)]
    print("\n".join(found) or f"no unwanted words in {len(kept)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
