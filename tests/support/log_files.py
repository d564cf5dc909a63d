"""Reads the log files of running brokers."""

from __future__ import annotations

from pathlib import Path

from ottla.core.files import SystemFiles
from ottla.records.batch_reader import read_headers


def batches_in(path: Path) -> bytes:
    """Return the batches of a `.log` file, without the zeros that are reserved for more."""
    file = SystemFiles(writable=False).open(path)
    try:
        size = file.size()
        end = max((found.end for found in read_headers(file, 0, size)), default=0)
        return file.read_at(0, end)
    finally:
        file.close()
