"""`python dying_server.py 17 <ottla> server ...`: the server, which dies of kill -9 before the 17th change it makes.

Changes are those of the log directories (files written, named, removed, synced) and every statement that SQLite runs
for the metadata store, commits too. They are counted from the moment a directory of the topic `arm` is made.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from ottla.core.files import SystemFile, SystemFiles

ARMING = "arm-0"


class Fuse:
    """Counts down once it burns."""

    def __init__(self, changes: int) -> None:
        self.left = changes
        self.burns = False

    def change(self) -> None:
        """The last one never happens."""
        if self.burns:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: type, name: str) -> None:
        """Count each call of a method."""
        method: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.change()
            return method(*args, **kwargs)

        setattr(owner, name, counted)

    def lit_by(self, path: PurePath) -> None:
        """Burn from now on, if this is the directory that says so."""
        self.burns = self.burns or path.name == ARMING


def install(fuse: Fuse) -> None:
    """Count everything that changes a disk."""
    for name in ("append", "write_at", "truncate", "sync"):
        fuse.before(SystemFile, name)
    for name in ("rename", "remove", "remove_tree", "sync_directory"):
        fuse.before(SystemFiles, name)
    make_directory, connect = SystemFiles.make_directory, sqlite3.connect

    def make(files: SystemFiles, path: PurePath) -> None:
        fuse.lit_by(path)
        fuse.change()
        make_directory(files, path)

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda _: fuse.change())
        return connection

    SystemFiles.make_directory = make  # type: ignore[assignment,method-assign]
    sqlite3.connect = traced  # type: ignore[assignment]


def main() -> int:
    """Install, then be the server."""
    install(Fuse(int(sys.argv[1])))
    from ottla.cli.main import run

    return run(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
