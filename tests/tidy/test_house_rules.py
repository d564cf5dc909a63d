"""The house rules that no linter knows."""

import ast
import itertools
import re
from pathlib import Path

import pytest

from ottla.broker.config import SECTIONS
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS, Api
from ottla.core.settings import settings_of
from ottla.wire.apis import API_INFO

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if "generated" not in path.parts]
ELSEWHERE = [path for room in ("tests", "benchmarks", "tools") for path in sorted((ROOT / room).rglob("*.py"))]
LINES_MAX, SCREEN_MAX, METHODS_MAX = 750, 60, 8
QUESTION_WORDS = r"(What|Where|Which|How|Who|When|Why)\b"
NO_VERBS = (
    QUESTION_WORDS
    + r"|(The|A|An|All|Whether|Every|Each|One|Both|Nothing|Everything|By|For|From|No|There|So|Some|Another|With|Of|In|On"
    r"|At|As|Raises|Returns|Reads|Writes|Waits|Runs|Prints|Called)\b"
)


def name_of(path: object) -> str:
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else str(path)


def names_a_thing(node: ast.AST) -> bool:
    """Return whether a docstring may begin with a noun: of a module, a class, a property, a group of commands."""
    return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or any(
        re.search(r"property|\.callback\(", ast.unparse(decorator)) for decorator in node.decorator_list
    )


def test_files_stay_below_the_length_limit() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in SOURCES + ELSEWHERE}
    assert not [f"{name_of(path)}: {lines} lines" for path, lines in lengths.items() if lines > LINES_MAX]


def test_functions_stay_on_a_screen() -> None:
    long = [
        f"{name_of(path)}: {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > SCREEN_MAX
    ]
    assert not long


def test_only_tables_are_kept_from_the_formatter() -> None:
    """Settings, planted bugs and scenarios of the comparison with Kafka have a row each."""
    mark = "# fmt: " + "skip"
    kept = {name_of(path) for path in SOURCES + ELSEWHERE if mark in path.read_text(encoding="utf-8")}
    tables = re.compile(r".*config\.py|tests/(mutation_tests|differential)/\w+\.py")
    assert not {name for name in kept if not tables.fullmatch(name)}


def test_ports_have_at_most_eight_methods() -> None:
    """A combination of ports counts what it adds. Why an open file may have nine: docs/design/storage.md."""
    ports = {
        f"{name_of(path)}: {node.name}": sum(
            isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body
        )
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    }
    assert {name: methods for name, methods in ports.items() if methods > METHODS_MAX} == {
        "src/ottla/core/files.py: File": 9
    }


def test_modules_have_a_docstring() -> None:
    bare = [
        name_of(path)
        for path in SOURCES
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not bare


def texts_below_names(tree: ast.AST) -> list[str]:
    """Return the strings that describe constants and fields: each is the statement after an assignment."""
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    return [
        after.value.value
        for body in bodies
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    ]


def test_texts_below_constants_and_fields_begin_with_no_question_word() -> None:
    """They name the thing, as those of classes do: "The time to wait", not "How long to wait"."""
    riddles = [
        f"{name_of(path)}: {found.splitlines()[0]}"
        for path in SOURCES
        for found in texts_below_names(ast.parse(path.read_text(encoding="utf-8")))
        if re.match(QUESTION_WORDS, found)
    ]
    assert not riddles


def test_docstrings_of_functions_begin_with_a_verb_and_none_with_a_question_word() -> None:
    """A function's first line is a verb and a noun, a class's names the thing: "Return the end", not "Where it ends"."""
    riddles = [
        f"{name_of(path)}: {found.splitlines()[0]}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (found := ast.get_docstring(node))
        and re.match(QUESTION_WORDS if names_a_thing(node) else NO_VERBS, found)
    ]
    assert not riddles


@pytest.mark.parametrize("api", [*APIS.values(), *INTER_BROKER_APIS.values()], ids=lambda api: api.module)
def test_each_row_of_the_registry_says_what_its_handlers_head_says(api: Api) -> None:
    head = ast.get_docstring(
        ast.parse((ROOT / "src/ottla/broker/handlers" / f"{api.module}.py").read_text(encoding="utf-8"))
    )
    assert head is not None
    found = re.match(r"(\w+) \(key (\d+)\), versions? (\d+)(?: to (\d+))?\.", head)
    assert found, f"{api.module}: the head must begin like 'Produce (key 0), versions 3 to 13.'"
    first, last = int(found[3]), int(found[4] or found[3])

    assert (int(found[2]), first, last) == (api.key, api.min_version, api.max_version)
    for heading in ("What it does\n", "What it does not do\n", "Versions\n"):
        assert heading in head


@pytest.mark.parametrize("api", [*APIS.values(), *INTER_BROKER_APIS.values()], ids=lambda api: api.module)
def test_each_handler_of_the_registry_can_be_imported_and_its_versions_are_known(api: Api) -> None:
    assert api.handler().key == api.key
    info = API_INFO[api.key]
    assert info.min_version <= api.min_version <= api.max_version <= info.max_version


def test_every_setting_is_read_or_says_why_it_has_no_effect() -> None:
    read = {name for path in SOURCES for name in re.findall(r"\.(\w+)", path.read_text(encoding="utf-8"))}
    unread = {
        spec.key: bool(spec.no_effect)
        for _, section in SECTIONS.values()
        for name, spec in settings_of(section).items()
        if name not in read
    }
    assert "num.recovery.threads.per.data.dir" in unread
    assert not [key for key, says_so in unread.items() if not says_so]


def test_no_text_installs_ottla_by_its_name() -> None:
    """It is not on a package index: what pip would find under the name there is another program."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCES, ROOT / "packaging" / "Containerfile"]
    by_name = re.compile(r"\b(?:pip|uv|uvx|pipx)\b[^\n`#]*?[ ]['\"]?ottla(?=[\[=<>~'\"`\s]|$)", re.MULTILINE)
    installs = re.compile(r"\b(?:install|add|run|uvx)\b")
    a_file = re.compile(r" --(?:from|spec) ['\"]?dist/")  # the program of a wheel
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in texts
        for match in by_name.finditer(path.read_text(encoding="utf-8"))
        if installs.search(match[0]) and not a_file.search(match[0])
    ]
    assert not found
    assert by_name.search("pip install 'ottla[pipeline]'")


def test_the_steps_on_the_path_of_a_batch_are_named_in_their_modules() -> None:
    steps = re.findall(r"\[`[\w/.]+`\]\((src/ottla/[\w/.]+)\)", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(steps) >= 9
    unnamed = [path for path in steps if not re.search(r"Step \d of 9", (ROOT / path).read_text(encoding="utf-8"))]
    assert not unnamed


def test_no_comment_marks_work_that_is_left() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    marked = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in SOURCES + ELSEWHERE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]
    assert not marked


def test_section_comments_are_spelled_one_way() -> None:
    odd = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.match(r" *#.*-{4}", line) and not re.match(r" *# ---- [A-Z].*[^-]$", line)
    ]
    assert not odd


PLAIN_FORM_MAX = 20
"""Test functions that run in the plain form alone: tests/README.md states the number."""


def test_few_tests_need_the_plain_form() -> None:
    mark = "pytest.mark." + "plain_form("
    count = 0
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if mark not in text:
            continue
        body = ast.parse(text).body
        tests = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        whole = any(isinstance(node, ast.Assign) and mark in ast.unparse(node) for node in body)
        marked = [test for test in tests if any(mark in ast.unparse(decorator) for decorator in test.decorator_list)]
        assert whole or marked, f"{name_of(path)}: the mark belongs to a function, or to the file as its pytestmark"
        count += len(tests if whole else marked)
    assert count <= PLAIN_FORM_MAX
    assert f"{PLAIN_FORM_MAX} test functions" in (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
