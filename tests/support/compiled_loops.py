"""The compiled form of a loop over bytes, to be compared with the plain one."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from ottla.compiled import loop_hash


def compiled_loop(plain: ModuleType) -> ModuleType:
    """Import the compiled form of a loop. Skips the test if there is none, and fails with a stale one."""
    try:
        loop = importlib.import_module(f"{plain.__name__}_compiled")
    except ImportError:
        pytest.skip("the loop is not compiled on this machine")
    assert loop_hash(str(plain.__file__)) == loop.SOURCE_HASH, "stale: make compile"
    return loop
