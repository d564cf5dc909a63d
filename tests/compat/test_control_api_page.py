"""What docs/control-api.md shows runs as it is written: a Java, a Go and a Node program with `ottla server --memory`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jvm import SHORT_RUN, java
from tests.support.restarted_clients import GO_BUILD, GO_PROGRAM

pytestmark = [pytest.mark.external, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "control-api.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _program(language: str) -> str:
    (program,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(program)


def _run(*command: str | Path, directory: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_java_program_runs(kafka_jars: Path, tmp_path: Path) -> None:
    (tmp_path / "OrdersTest.java").write_text(_program("java"), encoding="utf-8")
    said = _run(java(), *SHORT_RUN, "-cp", f"{kafka_jars}/*", "OrdersTest.java", directory=tmp_path)
    assert said == "the producer tried again: paid\n"


def test_the_go_program_runs(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go here")
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO_PROGRAM / name, tmp_path)
    (tmp_path / "main.go").write_text(_program("go"), encoding="utf-8")
    environment = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    _run(go, "build", *GO_BUILD, "-o", "orders", ".", directory=tmp_path, **environment)
    assert _run("./orders", directory=tmp_path) == "the producer tried again: paid\n"


def test_the_node_program_runs(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node here")
    (tmp_path / "orders.js").write_text(_program("js"), encoding="utf-8")
    said = _run(node, "orders.js", directory=tmp_path)
    assert re.fullmatch(r"the record has expired at 127\.0\.0\.1:\d+\n", said)
