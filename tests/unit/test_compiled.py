"""A compiled module runs only when it was built from the source beside it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ottla import compiled
from tests.support import form

PACKAGE = Path(compiled.ROOT)
BUILT = compiled.read_manifest(str(PACKAGE / "_compiled"))
PROGRAM = "import ottla.wire.frame as m, ottla.compiled as c; print(type(m.frame_length).__name__, c.form(), sep='|')"


def run(package: Path, **variables: str) -> tuple[str, str, str]:
    """Import a hot module in a new process; returns the type of its functions, the form reported and what stderr holds."""
    variables = {"OTTLA_PLAIN": "", "PYTHONPATH": str(package.parent), **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    kind, form = done.stdout.strip().split("|")
    return kind, form, done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources, with symbolic links to the present build as if it had been made for them."""
    if BUILT is None or BUILT.changed(str(PACKAGE)):
        pytest.skip("there is no fresh build: make compile")
    copy = tmp_path / "ottla"
    for path in (*BUILT.hashes, *(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*.py"))):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((PACKAGE / path).read_bytes())
    for init in PACKAGE.glob("**/__init__.py"):
        if (copy / init.relative_to(PACKAGE)).parent.is_dir():
            (copy / init.relative_to(PACKAGE)).write_bytes(init.read_bytes())
    (copy / "_compiled").symlink_to(PACKAGE / "_compiled")
    return copy


def test_a_fresh_build_runs(package: Path) -> None:
    kind, form, errors = run(package)

    assert kind == "builtin_function_or_method"
    assert form.startswith("compiled, CPython ")
    assert errors == ""


@pytest.mark.usefixtures("package")
def test_every_hot_module_is_compiled() -> None:
    """One that mypyc refuses stays plain with a line that a build's output hides: it costs speed alone."""
    assert BUILT is not None
    assert BUILT.plain == {}


def test_after_an_edit_the_source_runs_and_one_line_says_how_to_rebuild(package: Path) -> None:
    edited = package / "wire" / "frame.py"
    before = edited.stat()
    edited.write_text(edited.read_text().replace("LENGTH_BYTES: Final = 4", "LENGTH_BYTES: Final = 5"))
    os.utime(edited, ns=(before.st_atime_ns, before.st_mtime_ns))  # neither size nor time shows it

    kind, form, errors = run(package)

    assert kind == "function"
    assert form.startswith("plain Python")
    assert errors.count("\n") == 1
    assert "wire/frame.py changed after the build" in errors
    assert compiled.REBUILD in errors


def test_after_a_source_was_deleted_its_compiled_form_does_not_run(package: Path) -> None:
    deleted = next(path for path in BUILT.compiled.values() if path != "wire/frame.py") if BUILT else ""
    (package / deleted).unlink()

    kind, _, errors = run(package)

    assert kind == "function"
    assert f"{deleted} changed after the build" in errors


def test_a_constant_of_a_plain_module_that_was_compiled_in_counts_as_a_source(package: Path) -> None:
    read = next(path for path in BUILT.hashes if path not in BUILT.compiled.values()) if BUILT else ""
    (package / read).write_text((package / read).read_text() + "\nX = 1\n")

    assert "changed after the build" in run(package)[2]


def test_one_variable_chooses_the_plain_source(package: Path) -> None:
    kind, form, errors = run(package, OTTLA_PLAIN="1")

    assert (kind, errors) == ("function", "")
    assert form.startswith("plain Python")


def test_a_library_that_cannot_be_loaded_leaves_the_plain_source(package: Path) -> None:
    (package / "_compiled").unlink()
    (package / "_compiled").mkdir()
    suffix = compiled.SUFFIX
    (package / "_compiled" / f"manifest{suffix}.txt").write_text(
        (PACKAGE / "_compiled" / f"manifest{suffix}.txt").read_text()
    )
    (package / "_compiled" / f"{compiled.LIBRARY}{suffix}").write_bytes(b"no library")

    kind, _, errors = run(package)

    assert kind == "function"
    assert "cannot be loaded" in errors


def test_where_no_skip_is_allowed_a_test_process_does_not_run_the_plain_form_unnoticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, compiled.LIBRARY, raising=False)
    monkeypatch.delenv("OTTLA_PLAIN", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/cc")
    assert "make compile" in form.problem()
    monkeypatch.setenv("OTTLA_PLAIN", "1")
    assert form.problem() == ""
    monkeypatch.delenv("OTTLA_PLAIN")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert form.problem() == ""


# ---- Loops that Cython compiles one by one


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A loop with a compiled form of the present source."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OTTLA_PLAIN", raising=False)
    for name, text in (("a_loop.py", "def run(): ...\n"), ("a_loop.pxd", "cpdef run()\n")):
        (tmp_path / name).write_text(text)
    built_from = compiled.loop_hash(str(tmp_path / "a_loop.py"))
    (tmp_path / "a_loop_compiled.py").write_text(f"SOURCE_HASH = {built_from!r}\n")
    plain = importlib.import_module("a_loop")
    yield plain
    for name in ("a_loop", "a_loop_compiled"):
        sys.modules.pop(name, None)


def test_the_compiled_form_of_a_loop_runs_if_it_was_built_from_the_present_source(
    loop: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled.fastest(loop).__name__ == "a_loop_compiled"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def test_after_an_edit_the_plain_loop_runs_and_one_line_says_so(
    loop: ModuleType, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(str(loop.__file__)).with_suffix(suffix)
    path.write_text(path.read_text().replace("run", "go"))

    assert compiled.fastest(loop) is loop
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "a_loop is stale" in errors
    assert compiled.REBUILD in errors


def test_without_a_compiled_form_the_plain_loop_runs(loop: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    Path(str(loop.__file__)).with_name("a_loop_compiled.py").unlink()
    assert compiled.fastest(loop) is loop
    assert capsys.readouterr().err == ""


def test_the_variable_for_the_plain_source_chooses_the_plain_loops_too(
    loop: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_PLAIN", "1")
    assert compiled.fastest(loop) is loop
