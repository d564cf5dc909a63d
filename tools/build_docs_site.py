"""Builds the pages into a site, build/site, with Zensical: `make docs`. It needs no network.

`python3 -m http.server -d build/site` serves it. Opened as files the pages are the same, without the search.

The pages are taken as they are. Only links change: one to a file that is no page, such as a module, becomes its text,
for the site has pages only. The navigation is docs/README.md: its sections, and the pages that each links to.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).resolve().parents[1]
INDEX = "docs/README.md"
OUTSIDE = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "changes/README.md": "changes.md",
    "tests/README.md": "tests.md",
}
"""Pages that are not below docs/, and their places in the site."""
PICTURES = (".png", ".svg")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)#:\s]*)(#[^)\s]+)?\)")
_SECTION = re.compile(r"^(?:\*\*(.+?)\*\*:?(.*)|## (.+))$")
_CODE = re.compile(r"^(```.*?^```)|(`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^(```\w+) .*\n")  # words after the language are for tests
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_SETTINGS = """\
[project]
site_name = "Ottla"
site_description = "A commit log that speaks Kafka's protocol"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.sections", "navigation.top", "search.highlight", "toc.follow"
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{ icon = "lucide/moon", name = "Dark colors" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{ icon = "lucide/sun", name = "Light colors" }}

[project.markdown_extensions]
tables = {{}}
"pymdownx.highlight" = {{ use_pygments = true }}
"pymdownx.superfences" = {{}}
toc = {{ permalink = true, slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }} }}
"""


def places() -> dict[str, str]:
    """Return every page of the repository that is in the site, and its place there."""
    pages = {page: place for page, place in OUTSIDE.items() if (ROOT / page).exists()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT).as_posix()
        pages[page] = "index.md" if page == INDEX else page.removeprefix("docs/")
    return pages


def rewritten(text: str, page: str, pages: dict[str, str]) -> str:
    """Return a page with the links of the site, outside of code."""

    def link(found: re.Match[str]) -> str:
        mark, label, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target:
            return found[0]
        file = normpath(str(PurePosixPath(page).parent / target))
        is_picture = file.startswith("docs/") and file.endswith(PICTURES)
        place = file.removeprefix("docs/") if is_picture else pages.get(file)
        if place is None:
            return label
        return f"{mark}[{label}]({relpath(place, str(PurePosixPath(pages[page]).parent))}{anchor})"

    kept, at = [], 0
    for code in _CODE.finditer(text):
        is_label = text[code.end() : code.end() + 2] == "](" or text[code.start() - 1 : code.start()] == "["
        if code[2] and is_label:
            continue  # code as the label of a link: the link is rewritten with it
        kept += [_LINK.sub(link, text[at : code.start()]), _FENCE.sub(r"\1\n", code[0], count=1)]
        at = code.end()
    return "".join((*kept, _LINK.sub(link, text[at:])))


def navigation(pages: dict[str, str]) -> list[dict[str, object]]:
    """Return the sections of docs/README.md with their pages, each page once, and the other pages at the end."""
    sections: list[tuple[str, list[str]]] = [("", ["index.md"])]
    placed = {"index.md"}
    for line in (ROOT / INDEX).read_text(encoding="utf-8").splitlines():
        section = _SECTION.match(line)
        if section is not None:
            sections.append((section[1] or section[3], []))
        for place in _linked(line, pages):
            if place not in placed:
                placed.add(place)
                sections[-1][1].append(place)
    sections.append(("More", [place for place in pages.values() if place not in placed]))
    titles = {place: _title(page) for page, place in pages.items()}
    entries: list[dict[str, object]] = []
    for name, members in sections:
        items = [{titles[place]: place} for place in members]
        if items:
            entries += [{name: items}] if name else [{"Documentation": members[0]}]
    return entries


def _linked(line: str, pages: dict[str, str]) -> Iterator[str]:
    for found in _LINK.finditer(line):
        file = normpath(str(PurePosixPath(INDEX).parent / found[3]))
        if found[3] and file in pages:
            yield pages[file]


def _title(page: str) -> str:
    title = _TITLE.search((ROOT / page).read_text(encoding="utf-8"))
    return title[1].replace("`", "").partition(":")[0] if title else page


def stage(directory: Path) -> None:
    """Write the pages, the pictures and the settings of Zensical."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = places()
    for page, place in pages.items():
        file = directory / "pages" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rewritten((ROOT / page).read_text(encoding="utf-8"), page, pages), encoding="utf-8")
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in PICTURES:
            file = directory / "pages" / path.relative_to(ROOT / "docs")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, file)
    settings = _SETTINGS.format(nav=_toml(navigation(pages)))
    (directory / "zensical.toml").write_text(settings, encoding="utf-8")


def _toml(value: object) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value)


def build(site: Path, *, work: Path) -> None:
    """Build the site. Raises CalledProcessError if Zensical refuses, also for what is only a warning to it."""
    stage(work)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(work / "zensical.toml")]
    subprocess.run(command, check=True)
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / "site", site)


def main() -> None:
    """Build the site into a directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "docs-site")
    given = parser.parse_args()
    build(given.site.absolute(), work=given.work.absolute())
    print(f"written: {given.site / 'index.html'}")


if __name__ == "__main__":
    main()
