"""CVE-2023-52251, CVE-2026-5562: filter expressions of a console were run as Groovy; here they are a grammar of our own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import search
from ottla.client.search.matcher import compile_filter
from ottla.client.search.parser import InvalidFilter, parse
from ottla.console.message_filter import MessageFilter
from ottla.console.visit import Refused
from ottla.core.ids import TopicPartition
from ottla.records.record_reader import Record

RUNNING = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "getattr",
    "globals",
    "locals",
    "open",
    "system",
    "popen",
    "import_module",
}
MODULES = {"subprocess", "os", "pickle", "ctypes", "code", "runpy", "builtins"}
EVIL = (
    "__import__('os').system('touch /tmp/x')",
    "new ProcessBuilder('touch').start()",
    "'x'.execute()",
    "''.__class__.__mro__",
    "key == __import__('os')",
    "value.x == eval('1')",
    "value.__class__ == lambda: 0",
    "value[__import__('os')] exists",
    "key == ${env:HOME}",
    "key == f'{1}'",
)
AUDITED = ("exec", "compile", "import", "os.system", "subprocess.Popen", "open", "ctypes.dlopen")
_seen: list[str] = []
_listening: set[str] = set()  # not empty while a test listens


def _listen(event: str, _: object) -> None:
    if _listening and event in AUDITED:
        _seen.append(event)


sys.addaudithook(_listen)


def _parsed(text: str) -> None:
    """Parse an expression as the console does, and match it with a record."""
    record = Record(0, 0, b"k", b'{"x": {"__class__": 1}}', [("h", b"v")])
    try:
        compile_filter(parse(text, now_ms=0))(TopicPartition("t", 0), record)
    except InvalidFilter:
        pass


@pytest.mark.parametrize("text", EVIL)
def test_what_is_no_condition_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidFilter, match="at position"):
        parse(text, now_ms=0)
    with pytest.raises(Refused):
        MessageFilter(where=text).matcher(now_ms=0)


@given(st.one_of(st.sampled_from(EVIL), st.text(st.sampled_from("key.value==()[]_'\"import os\\x00 and"), max_size=60)))
def test_no_expression_compiles_imports_opens_or_starts_anything(text: str) -> None:
    _parsed("value.x exists")  # what is imported with the first one
    _seen.clear()
    _listening.add("test")
    try:
        _parsed(text)
    finally:
        _listening.clear()
    assert not _seen


def test_a_name_of_python_in_a_path_is_a_name_of_json() -> None:
    record = Record(0, 0, None, b'{"x": 1}', [])
    matches = compile_filter(parse("value.x.__class__ exists or value.__dict__ exists", now_ms=0))
    assert not matches(TopicPartition("t", 0), record)


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(ast.Name("os" | "builtins"), name)):
                yield name
            case ast.Import(names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from ((module or "").partition(".")[0], *(alias.name for alias in names))


def test_the_search_has_no_code_that_could_run_an_expression() -> None:
    files = list(Path(search.__file__).parent.glob("*.py"))
    assert len(files) > 4
    for file in files:
        assert not (RUNNING | MODULES) & set(_names(ast.parse(file.read_text()))), file
