"""Runs the command line as `python -m ottla`."""

from __future__ import annotations

from ottla.cli.main import main

if __name__ == "__main__":
    main()
