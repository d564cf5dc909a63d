"""The commands that documents show: each exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ottla.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?:^|[|;&(\"] *|\$ |/bin/|then |until |do |exec ottla )ottla ([^|;&>)#\n]*)", re.MULTILINE)
INLINE = re.compile(r"`ottla ([^`|;&>]*)")


def calls(text: str) -> Iterator[str]:
    """Return the arguments of every `ottla` that a page shows, in blocks and within sentences."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("ottla ready:"):
                yield from CALL.findall(line)
    yield from INLINE.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def unknown(call: str) -> str | None:
    """Return the first command or option of a call that does not exist."""
    command: Any = typer.main.get_command(app)
    options = {"--help", "--version"}
    for word in call.split():
        options |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        if re.match(r"--?[a-zA-Z]", word) and not re.match(r"-\d", word):
            name = word.split("=")[0].rstrip(",.'\"]")
            if not name.startswith("--"):
                name = name[:2]
            if name not in options:
                return name
        elif hasattr(command, "get_command") and re.fullmatch(r"[a-z-]+", word):
            below = command.get_command(None, word)
            if below is None:
                return word
            command = below
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_a_document_shows_exist_with_their_options(page: Path) -> None:
    found = {call: unknown(call) for call in calls(page.read_text(encoding="utf-8"))}
    assert not {call: name for call, name in found.items() if name}


def test_a_command_and_an_option_that_do_not_exist_are_found() -> None:
    shown = list(calls("```sh\necho x | ottla produce t --frobnicate\n```\nor `ottla topic list`"))
    assert [unknown(call) for call in shown] == ["--frobnicate", None]
    assert unknown("docter --now") == "docter"
