"""Runs the command line, as `ottla` and as `python -m ottla`."""

from __future__ import annotations

from ottla.core import garbage_collection


def main() -> None:
    """Import the command line without collections, and run it."""
    with garbage_collection.paused():
        from ottla.cli.main import main as run_command_line
    run_command_line()


if __name__ == "__main__":
    main()
