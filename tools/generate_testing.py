"""Generates the tables of workloads and mutations in docs/storage-testing.md and docs/group-testing.md.

The text between `<!-- generated: NAME -->` and `<!-- end -->` comes from `WORKLOADS` and `BUGS`; the rest of the pages
is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mutation_tests.patching import Bug

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/storage-testing.md", "docs/group-testing.md")
_BLOCK = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generate() -> dict[str, str]:
    """Return the pages as they should be, by their path in the repository."""
    return {page: render((ROOT / page).read_text(encoding="utf-8")) for page in PAGES}


def render(page: str) -> str:
    """Replace every generated part of a page."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_part(found[2])}{found[3]}", page)


def _part(name: str) -> str:
    sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []
    from tests.mutation_tests.bugs import BUGS, STORAGE_BUGS

    match name:
        case "workloads":
            return _workloads()
        case "mutations of the storage":
            return _mutations(STORAGE_BUGS)
        case "mutations of the coordinators":
            return _mutations(bug for bug in BUGS if bug not in STORAGE_BUGS)
        case "number of mutations":
            storage = len(STORAGE_BUGS)
            return f"{len(BUGS)} mutations: {storage} of the storage, {len(BUGS) - storage} of the coordinators.\n"
    raise ValueError(f"nothing generates {name!r}")


def _workloads() -> str:
    from tests.crash_tests.workloads import WORKLOADS

    rows = "".join(f"| `{workload.name}` | {workload.run.__doc__} |\n" for workload in WORKLOADS.values())
    return "| Workload | What it does |\n| --- | --- |\n" + rows


def _mutations(bugs: Iterable[Bug]) -> str:
    rows = "".join(f"| {bug.name} | {bug.what} | {bug.suite} | {bug.seed} | {bug.within} |\n" for bug in bugs)
    return "| Bug | What it does | Found by | Seed | Limit |\n| --- | --- | --- | ---: | ---: |\n" + rows
