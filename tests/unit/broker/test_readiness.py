"""The ready line: where the broker listens, and what its operator should know from the first moment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.broker.startup.readiness import Ready
from ottla.compiled import CompiledModules
from ottla.net.server import ListenerAddress

READY = Ready([ListenerAddress("PLAINTEXT", "127.0.0.1", 9092)], 1, "id", [Path("/data")], 0.3)
NOTE = "; as plain Python, which is slower: no compiled modules are installed"


@pytest.mark.parametrize("is_chosen", [True, False])
def test_the_ready_line_says_that_the_slow_form_runs_unless_it_was_chosen(
    monkeypatch: pytest.MonkeyPatch, *, is_chosen: bool
) -> None:
    compiled = CompiledModules("", frozenset())
    plain = [finder for finder in sys.meta_path if not isinstance(finder, CompiledModules)]
    line = "ottla ready: 127.0.0.1:9092 node 1 data /data in 0.30 s"

    monkeypatch.setattr(sys, "meta_path", [compiled, *plain])
    assert READY.line() == line
    monkeypatch.setattr(sys, "meta_path", plain)
    monkeypatch.setenv("OTTLA_PLAIN", "1" if is_chosen else "")
    assert READY.line() == line + ("" if is_chosen else NOTE)
