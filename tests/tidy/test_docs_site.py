"""The site that `make docs` builds of the pages: its links resolve, it needs no network, and no page looks otherwise.

That the commands and the files exist that the pages name is in test_commands.py and test_documents.py.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
COUNTED = ("h2", "h3", "h4", "li", "pre", "tr", "th", "td")


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_docs_site", ROOT / "tools" / "build_docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
PAGES = TOOL.places()


class Page(HTMLParser):
    """What a page of the site links to, loads, and has in its article."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.counts = Counter[str]()
        self._in_article = False
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, a file that is loaded, an anchor, or an element of the article."""
        given = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        if tag in {"script", "img"} and (source := given.get("src")):
            self.loaded.append(source)
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload"} and (source := given.get("href")):
            self.loaded.append(source)
        self._in_article = self._in_article or tag == "article"
        if self._in_article:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """End the article."""
        self._in_article = self._in_article and tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of the site by their places, in HTML."""
    directory = tmp_path_factory.mktemp("docs")
    TOOL.build(directory / "site", work=directory / "work")
    files = (directory / "site").rglob("*.html")
    return {file.relative_to(directory / "site").as_posix(): Page(file) for file in files}


def test_every_page_is_in_the_site_and_once_in_the_navigation(site: dict[str, Page]) -> None:
    assert {place.replace(".md", ".html") for place in PAGES.values()} | {"404.html"} == set(site)
    listed = [
        page
        for entry in TOOL.navigation(PAGES)
        for value in entry.values()
        for page in ([value] if isinstance(value, str) else [place for item in value for place in item.values()])
    ]
    assert Counter(listed) == Counter(PAGES.values())


def test_every_link_and_anchor_of_the_site_resolves(site: dict[str, Page]) -> None:
    broken = []
    for place, page in site.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc or place == "404.html":
                continue
            target = TOOL.normpath(str(Path(place).parent / url.path)) if url.path else place
            target = "index.html" if target == "." else target
            if target not in site or (url.fragment and unquote(url.fragment) not in site[target].anchors):
                broken.append(f"{place}: {link}")
    assert not broken


def test_the_site_loads_nothing_from_elsewhere(site: dict[str, Page]) -> None:
    assert not {source for page in site.values() for source in page.loaded if urlsplit(source).netloc}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_headings_lists_tables_and_blocks_that_a_reader_of_the_repository_sees(
    page: str, site: dict[str, Page]
) -> None:
    rendered = MarkdownIt("commonmark").enable("table").render((ROOT / page).read_text(encoding="utf-8"))
    seen = Counter[str]()

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen[tag] += 1

    Elements().feed(rendered)
    built = site[PAGES[page].replace(".md", ".html")].counts
    assert {tag: built[tag] for tag in COUNTED} == {tag: seen[tag] for tag in COUNTED}


def test_only_links_and_the_words_after_a_language_change() -> None:
    text = (
        "See [`a.py`](../src/a.py), [the line](cli.md#top), `[x](cli.md)`, [up](../ARCHITECTURE.md) and [a](#b).\n"
        "```python testcontainers\n[x](y.md)\n```\n"
    )
    assert TOOL.rewritten(text, "docs/testing.md", PAGES) == (
        "See `a.py`, [the line](cli.md#top), `[x](cli.md)`, [up](architecture.md) and [a](#b).\n"
        "```python\n[x](y.md)\n```\n"
    )
    assert TOOL.rewritten("![c](docs/images/c.png)", "README.md", PAGES) == "![c](images/c.png)"
    assert TOOL.rewritten("![c](../images/c.png)", "docs/design/build.md", PAGES) == "![c](../images/c.png)"
