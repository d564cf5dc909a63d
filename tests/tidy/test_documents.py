"""The rules of the documents: links, and the names of files, packages and tests that they mention."""

import fnmatch
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "src" / "ottla"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PAGES = [
    ROOT / "README.md",
    ARCHITECTURE,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "changes" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULE = re.compile(r"`([\w.*/-]+\.py)`")
PART = re.compile(r"`([\w.*/-]+(?:\.py|/))`")  # a module, or a directory written with its slash


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def section(title: str) -> str:
    """Return a section of ARCHITECTURE.md."""
    return text_of(ARCHITECTURE).split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table in a section of ARCHITECTURE.md, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_and_heading_a_document_links_to_is_there(page: Path) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text_of(page)):
        linked = page.parent / target if target else page
        if not linked.exists() or (anchor and anchor not in anchors(linked.resolve())):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_a_document_names_is_there(page: Path) -> None:
    modules = [path for room in ("src", "tests", "tools", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    assert not [
        name
        for name in MODULE.findall(text_of(page))
        if not (ROOT / name).exists() and not any(path.match(name) for path in modules)
    ]


@cache
def names_of_tests() -> frozenset[str]:
    """Return the names of all test functions."""
    modules = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for path in modules for name in re.findall(r"def (test_\w+)\(", text_of(path)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_a_document_names_is_there(page: Path) -> None:
    """A name that ends with dots is the beginning of a name."""
    named = re.findall(r"`(test_[a-z0-9_]+(?:\.\.\.)?)`", text_of(page))
    assert not [name for name in named if not fnmatch.filter(names_of_tests(), name.replace("...", "*"))]


def test_the_table_of_packages_has_each_package_and_names_its_modules() -> None:
    table = {row[0].strip("`"): " ".join(row[1:]) for row in rows("Packages")}
    packages = {path.parent.name for path in PACKAGES.glob("*/__init__.py")}
    assert set(table) == {*packages, "compiled.py"}
    assert not [
        f"{package}/{name}"
        for package, cells in table.items()
        for name in PART.findall(cells)
        if not list((PACKAGES / package).glob(name.rstrip("/")))
    ]


def test_the_lists_of_parts_of_packages_name_their_directories_and_modules() -> None:
    lists = re.findall(r"^- `(\w+)`: (.+(?:\n  .+)*)", section("Packages"), re.MULTILINE)
    assert len(lists) >= 5
    assert not [
        f"{package}/{name}"
        for package, parts in lists
        for name in PART.findall(parts)
        if not list((PACKAGES / package).glob(name.rstrip("/")))
    ]


def test_the_table_of_kafkas_parts_names_modules() -> None:
    """A name without a directory belongs to the directory of the name before it."""
    missing = []
    for _, cell in rows("Where Kafka's parts are"):
        directory = ""
        for name in PART.findall(cell):
            path = name if "/" in name else f"{directory}/{name}"
            directory = path.rpartition("/")[0]
            if not list(PACKAGES.glob(path.rstrip("/"))):
                missing.append(path)
    assert not missing


def test_the_table_of_the_repository_names_its_directories_and_files() -> None:
    names = [name for row in rows("The repository") for name in re.findall(r"`([^`]+)`", row[0])]
    assert len(names) >= 10
    assert not [name for name in names if not (ROOT / name).exists()]
