"""What is locked and pinned has no known vulnerability that is not accepted, and the check finds one that is."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_vulnerabilities", ROOT / "tools" / "check_vulnerabilities.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_vulnerabilities", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def index() -> Iterator[str]:
    """A package index that knows one release of `one`."""
    withdrawn = {"id": "PYSEC-2", "aliases": [], "summary": "an error", "withdrawn": "2026-01-01T00:00:00Z"}
    known = {"id": "PYSEC-1", "aliases": ["GHSA-1", "CVE-2026-1"], "summary": "", "details": "runs code\nof others"}
    releases: dict[str, dict[str, Any]] = {
        "/pypi/one/1.0/json": {"vulnerabilities": [known, withdrawn]},
        "/pypi/fine/1.0/json": {"vulnerabilities": []},
        "/pypi/silent/1.0/json": {},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            release = releases.get(self.path)
            self.send_response(404 if release is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(release or {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_locked_package_and_every_jar_of_zookeeper_is_compared_with_the_list(tool: ModuleType) -> None:
    packages = tool.locked_packages(sorted((ROOT / "locks").glob("*.txt")))
    jars = tool.pinned_jars()
    assert {"kazoo", "cryptography", "uv"} <= {pinned.name for pinned in packages}
    assert {"org.apache.zookeeper:zookeeper-jute", "org.slf4j:slf4j-api"} <= {pinned.name for pinned in jars}
    listed = tool.read_list()
    assert {entry.package for entry in listed} <= {pinned.name for pinned in [*packages, *jars]}, "the list is used"
    lines, is_good = tool.check(packages, jars, listed, None)
    assert is_good, lines
    assert any("the package index was not asked" in line for line in lines)


def test_the_zookeeper_with_a_known_vulnerability_is_found_and_what_is_accepted_is_named(tool: ModuleType) -> None:
    old = tool.Pinned("org.apache.zookeeper:zookeeper", "3.9.4", "here")
    lines, is_good = tool.check([], [old], tool.read_list(), None)
    assert not is_good
    assert any("zookeeper 3.9.4 (here) has CVE-2026-24308" in line for line in lines)
    assert any(line.startswith("accepted: ") and "CVE-2026-84439" in line for line in lines)


def test_what_the_package_index_knows_counts_and_what_it_has_no_data_on_is_named(tool: ModuleType, index: str) -> None:
    packages = [tool.Pinned(name, "1.0", "here") for name in ("one", "fine", "silent", "absent")]
    lines, is_good = tool.check(packages, [], [], lambda pinned: tool.ask_index(pinned, index))
    assert not is_good
    assert lines[0] == "one 1.0 (here) has CVE-2026-1: runs code. Use a version without it"
    assert lines[1] == "no data of the package index on 2 of 4: silent, absent"
    accepted = tool.Vulnerability("CVE-2026-1", "one", (), "runs code", "nothing calls it")
    lines, is_good = tool.check(packages, [], [accepted], lambda pinned: tool.ask_index(pinned, index))
    assert is_good
    assert lines[0].endswith("runs code: nothing calls it")
