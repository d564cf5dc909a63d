"""The rules of the design pages: their sections, and every name of the tree that they mention."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "design").glob("*.md"))
SOURCES = [
    path
    for top in ("src", "tests", "tools", "benchmarks")
    for path in sorted((ROOT / top).rglob("*.py"))
    if path != Path(__file__)
]
CODE = re.compile(r"`([^`\n]+)`")
OF_OTHERS = frozenset(
    {
        "newfstatat",
        "futex",
        "fstat",
        "ftruncate",
        "fallocate",
        "access",
        "dlopen",
        "pwrite",
        "commit_delay",
        "/proc/self/fd/N",
    }
    | {
        "asyncio.timeout",
        "wait_for",
        "eager_start",
        "importlib.metadata",
        "NamedTuple",
        "Trigger.AvailableNow",
        "uv.lock",
        "jq",
        "diff",
    }
    | {"producer_byte_rate", "consumer_byte_rate", "request_percentage"}
    | {"controller_mutation_rate", "connection_creation_rate"}
    | {"transaction.partition.verification.enable", "~/.m2/settings.xml", ".pth"}
)
"""Names of the system, of libraries and of Kafka."""


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def all_text() -> str:
    """Return the sources, the Makefile and pyproject.toml, where texts such as a setting's name are found."""
    return "\n".join(map(text_of, (*SOURCES, ROOT / "Makefile", ROOT / "pyproject.toml")))


@cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"[\w.]*\w", all_text()))


@cache
def names() -> frozenset[str]:
    """Return the names of modules, packages, classes, functions, constants and attributes."""
    parts = {part.removesuffix(".py") for path in SOURCES for part in path.relative_to(ROOT).parts}
    defined = re.findall(r"^\s*(?:async )?(?:class |def |self\.)?(\w+)|mark\.(\w+)", all_text(), re.MULTILINE)
    return frozenset(parts.union(*defined))


@cache
def classes(name: str) -> list[ast.ClassDef]:
    """Return the classes of a name."""
    begin = re.compile(rf"^class {name}\b", re.MULTILINE)
    modules = [ast.parse(text) for text in map(text_of, SOURCES) if begin.search(text)]
    return [node for tree in modules for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]


def defined_in(tree: ast.ClassDef) -> Iterator[str]:
    """Yield what a class defines or assigns anywhere in it."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def has_member(owner: str, member: str) -> bool:
    """Return whether a class of this name, or one that it inherits from, defines a member."""
    return any(
        member in defined_in(node)
        or any(has_member(ast.unparse(base).partition("[")[0], member) for base in node.bases)
        for node in classes(owner)
    )


def is_there(code: str) -> bool:
    """Return whether the tree has what a text in backquotes names; texts that are no names are."""
    if code in OF_OTHERS or re.search(r"[<>*={}$]", code):
        return True
    if code.startswith(("make ", "python -m ")):
        return names_a_program(code.split())
    if "/" in code or code.endswith(".py"):
        return " " in code or has_path(code)
    owner, _, member = code.rpartition(".")
    if re.fullmatch(r"[A-Z]\w*[a-z]\w*", owner):
        return has_member(owner, member)
    if re.fullmatch(r"[A-Z]\w*[a-z][A-Z]\w*|[a-z]\w*_\w+", code):  # a class, a function
        return code in names()
    return not re.fullmatch(r"[\w.]*\w", code) or code in words()


def names_a_program(parts: list[str]) -> bool:
    """Return whether `make TARGET` or `python -m MODULE` can be called."""
    if parts[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
        return {part for part in parts[1:] if re.fullmatch(r"[a-z][a-z-]+", part)} <= targets
    path = ROOT / parts[2].replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def has_path(code: str) -> bool:
    """Return whether a file or directory is anywhere in the repository, or whether the sources name a node's path."""
    if code.startswith("/"):
        return re.search(rf"{re.escape(code)}\b", all_text()) is not None
    return (ROOT / code).exists() or any(f"/{path}".endswith(f"/{code.strip('/')}") for path in paths())


@cache
def paths() -> frozenset[str]:
    """Return the directories and files of the sources."""
    found = [path.relative_to(ROOT) for path in SOURCES]
    return frozenset(str(path) for source in found for path in (source, *source.parents))


def test_there_are_12_to_18_design_pages_and_the_list_of_documents_has_each_with_its_title() -> None:
    listed = re.findall(r"^- \[(.+?)\]\(design/([\w-]+\.md)\)", text_of(DOCS / "README.md"), re.MULTILINE)
    titles = {(match[1], page.name) for page in PAGES if (match := re.match(r"# (.+)\n", text_of(page)))}

    assert 12 <= len(PAGES) <= 18
    assert len(listed) == len(PAGES)
    assert set(listed) == titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_design_page_ends_with_the_roads_not_taken_and_how_it_would_be_wrong(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", text_of(page), re.MULTILINE)

    assert headings[-2:] == ["Roads not taken", "Wrong if"]
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_design_page_links_to_its_code_before_the_first_section(page: Path) -> None:
    """That the links lead somewhere is for all documents in test_documents.py."""
    assert re.search(r"^Code: \[`[\w/.]+`\]\(../../(?:src|tests)/", text_of(page).partition("\n## ")[0], re.MULTILINE)


def test_every_page_that_the_sources_name_is_there() -> None:
    pages = set(re.findall(r"\bdocs/[\w/-]+\.md\b", all_text()))

    assert len(pages) >= 20
    assert not [page for page in pages if not (ROOT / page).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tree_has_everything_that_a_design_page_names(page: Path) -> None:
    assert not [code for code in CODE.findall(text_of(page)) if not is_there(code)]


@pytest.mark.parametrize(
    "code",
    [
        "GroupComit",
        "GroupCommit.begin",
        "next_fetches",
        "ELEMENTS_MOST",
        "storage/cleaning/repair_log.py",
        "make benchs",
        "python -m benchmarks.hot_paths",
        "log.cleaner.thread",
        "/ottla_handled",
        "tests/crash_test",
        "depos",
    ],
)
def test_a_name_that_the_tree_has_not_is_noticed(code: str) -> None:
    assert not is_there(code)
