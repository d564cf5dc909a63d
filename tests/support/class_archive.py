"""Makes archives of the classes that a Java program loads, which the JVM maps at a start instead of reading jars."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.jvm import java
from tests.support.processes import NotReady

LIMIT_S = 480.0


def archive_in(directory: Path, *program: str) -> Path:
    """Return the place of a program's archive, which fits one Java. Raises `JavaNotFound`."""
    runtime = java().resolve()
    key = hashlib.sha256(" ".join([str(runtime), str(runtime.stat().st_mtime_ns), *program]).encode()).hexdigest()
    return directory / f"{key[:16]}.jsa"


def make_archive(target: Path, run: Callable[[str], object]) -> Path:
    """Make the archive unless it is there: `run` gives a JVM the option that writes it at its end.

    Without an archive the program only starts later.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if not any(java().resolve().parents[1].rglob("classes.jsa")):  # the runtime's own, which ours extends
        subprocess.run([str(java()), "-Xshare:dump"], check=False, capture_output=True, timeout=LIMIT_S)
    part = target.with_suffix(f".{os.getpid()}")
    try:
        run(f"-XX:ArchiveClassesAtExit={part}")
        part.rename(target)
    except (OSError, AssertionError, NotReady, subprocess.SubprocessError) as error:
        print(f"no archive of classes for {target}: {error}")
    return target
