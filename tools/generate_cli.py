"""Generates the parts of docs/cli.md between markers: commands with their options, exit codes, offsets, formats.

The text between `<!-- generated: NAME -->` and `<!-- end -->` is generated from the commands; the rest of the page is
written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/cli.md"
# described once, at the top of the page; an option of the same name with another meaning is listed with its command
COMMON = {"brokers", "profile", "timeout"}
_BLOCK = re.compile(r"(<!-- generated: ([a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generate() -> dict[str, str]:
    """The page as it should be, by its path in the repository."""
    return {PAGE: render((ROOT / PAGE).read_text(encoding="utf-8"))}


def render(page: str) -> str:
    """The page with every generated part replaced."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_part(found[2])}{found[3]}", page)


def nouns(page: str) -> set[str]:
    """What the page has generated parts for."""
    return {found[1] for found in _BLOCK.findall(page)}


def _part(name: str) -> str:
    from ottla.cli import record_formatter
    from ottla.cli.errors import EXIT_CODE_MEANINGS
    from ottla.client import offset_spec
    from ottla.client.search import parser as search_parser

    match name:
        case "exit codes":
            rows = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items())
            return f"| Code | Meaning |\n| ---: | --- |\n{rows}\n"
        case "offsets":
            return _fenced(offset_spec.HELP)
        case "conditions":
            return _fenced(search_parser.HELP)
        case "format":
            return _fenced(record_formatter.HELP)
        case "common options":
            return _fenced("\n".join(_common_options()))
        case noun:
            return "".join(_fenced(text) for text in _commands(noun))


def _commands(noun: str) -> list[str]:
    return list(_described(_command(noun), f"ottla {noun}"))


def _described(command: Any, path: str) -> Iterator[str]:
    """Describe a command, or those of a group, which may be groups again."""
    below = getattr(command, "commands", {})
    if not below:
        yield _shown(command, path)
    for name, each in below.items():
        yield from _described(each, f"{path} {name}")


def _shown(command: Any, path: str) -> str:
    """A command's usage, what it does, and its own options."""
    context = _context(command, path)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    summary = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    common = _common_options()
    options = "".join(f"\n{line}" for line in _options(command) if line not in common)
    return f"{path} {usage}".rstrip() + f"\n    {summary}{options}"


def _common_options() -> list[str]:
    return _options(_command("topic", "describe"), only=COMMON)


def _options(command: Any, *, only: set[str] | None = None) -> list[str]:
    """A line for each option of a command but `--help`."""
    context = _context(command, "")
    lines = []
    for param in command.params:
        if param.name == "help" or (only is not None and param.name not in only):
            continue
        record = param.get_help_record(context)
        if record is not None and record[0].startswith("-"):
            lines.append(f"    {record[0]:<32}  {' '.join(record[1].split())}")
    return lines


def _context(command: Any, path: str) -> Any:
    return command.context_class(command, info_name=path)


def _command(noun: str, name: str = "") -> Any:
    import typer

    from ottla.cli.commands import app

    root = typer.main.get_command(app)
    found: Any = root.get_command(None, noun)  # type: ignore[attr-defined]
    return found.commands[name] if name else found


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def main() -> None:
    """Write the page."""
    for path, text in generate().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
