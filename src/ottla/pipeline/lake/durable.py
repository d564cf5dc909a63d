"""Makes files durable before a commit names them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ottla.core.files import SystemFiles


def sync_file(path: Path) -> None:
    """Return once the file's bytes are on the disk. Its name is durable only after `sync_directories`."""
    file = SystemFiles().open(path)
    try:
        file.sync()
    finally:
        file.close()


def sync_directories(paths: Iterable[Path], *, below: Path) -> None:
    """Make the names of these files durable: their directories and every one above, up to and with `below`'s parent."""
    wanted = {below, below.parent}
    for path in paths:
        for directory in path.parents:
            wanted.add(directory)
            if directory == below:
                break
    for directory in wanted:
        SystemFiles().sync_directory(directory)
