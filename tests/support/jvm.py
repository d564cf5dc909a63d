"""A Java for the tests and benchmarks that need one: what the pipeline finds or fetches, kept for the run."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from ottla.pipeline import java as finder
from ottla.pipeline.java import JavaNotFound

__all__ = ["SHORT_RUN", "JavaNotFound", "cache_directory", "java"]

SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that runs for seconds: a start of Kafka takes 4.7 s of processor time with them instead of 9.7."""


def cache_directory() -> Path:
    """Where things fetched once are kept."""
    return finder.cache_directory(os.environ)


@cache
def java() -> Path:
    """A Java 17 or 21 program. Raises `JavaNotFound` where none can be had."""
    return finder.java_home(os.environ, lambda line: print(line, file=sys.stderr)) / "bin" / "java"
