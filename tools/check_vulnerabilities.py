"""Checks the locked packages and the pinned jars against known vulnerabilities.

    python tools/check_vulnerabilities.py [--ask-index]

The versions are compared with the list in `locks/vulnerabilities.toml`, which needs no network. With `--ask-index` the
package index is asked besides for what it knows of each locked package. Prints each vulnerability, and what there is no
data for, and exits with 1 if an affected version is used that the list does not accept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ottla.local_cluster.zookeeper_jars import ARTIFACTS, LOCK_OF_TLS

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "locks" / "vulnerabilities.toml"
INDEX = "https://pypi.org"
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
_JAR = re.compile(r"(.+?)-(\d[\w.\-]*)\.jar")
_TIMEOUT_S = 10

Ask = Callable[["Pinned"], "list[Vulnerability] | None"]


@dataclass(frozen=True, slots=True, order=True)
class Pinned:
    """A package in the version that is used; the name of a jar's package has its group."""

    name: str
    version: str
    where: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.where})"


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """A known vulnerability and the versions that have it."""

    id: str
    package: str
    affected: tuple[SpecifierSet, ...]
    summary: str
    accepted: str = ""

    def affects(self, pinned: Pinned) -> bool:
        """Return whether this version has it."""
        return self.package == pinned.name and any(Version(pinned.version) in versions for versions in self.affected)


def locked_packages(files: Iterable[Path]) -> list[Pinned]:
    """List the packages of lock files."""
    return sorted(
        {
            Pinned(name.lower(), version, path.name)
            for path in files
            for name, version in _LOCKED.findall(path.read_text())
        }
    )


def pinned_jars() -> list[Pinned]:
    """List the jars of ZooKeeper's server, with those that they bring."""
    groups = {"netty": "io.netty"} | {artifact.name.split("-")[0]: artifact.group for artifact in ARTIFACTS}
    jars = []
    for file in LOCK_OF_TLS:
        named = _JAR.fullmatch(file)
        assert named is not None, file
        jars.append(Pinned(f"{groups[named[1].split('-')[0]]}:{named[1]}", named[2], "zookeeper_jars.py"))
    return sorted(jars)


def read_list(path: Path = LIST) -> list[Vulnerability]:
    """Read the list of the repository."""
    return [
        Vulnerability(
            entry["id"],
            entry["package"],
            tuple(map(SpecifierSet, entry["affected"])),
            entry["summary"],
            entry.get("accepted", ""),
        )
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["vulnerability"]
    ]


def ask_index(pinned: Pinned, index: str = INDEX) -> list[Vulnerability] | None:
    """Ask the package index for the vulnerabilities of a release; returns None if it has no data on that release."""
    try:
        url = f"{index}/pypi/{pinned.name}/{pinned.version}/json"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http in tests, else https
            release: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return None
    if release.get("vulnerabilities") is None:
        return None
    return [
        Vulnerability(
            next((alias for alias in entry.get("aliases", []) if alias.startswith("CVE-")), str(entry["id"])),
            pinned.name,
            (SpecifierSet(f"=={pinned.version}"),),
            str(entry.get("summary") or entry.get("details") or "no summary").split("\n")[0],
        )
        for entry in release["vulnerabilities"]
        if not entry.get("withdrawn")
    ]


def check(
    packages: Sequence[Pinned], jars: Sequence[Pinned], listed: Sequence[Vulnerability], ask: Ask | None
) -> tuple[list[str], bool]:
    """Compare what is used with what is known; returns lines to print, and whether all of it may be used."""
    lines, is_good = [], True
    accepted = {(entry.id, entry.package): entry.accepted for entry in listed if entry.accepted}
    unknown = []
    for pinned in [*packages, *jars]:
        known = [entry for entry in listed if entry.affects(pinned)]
        if ask is not None and pinned in packages:
            answer = ask(pinned)
            if answer is None:
                unknown.append(pinned.name)
            ids = {entry.id for entry in known}
            known += [entry for entry in answer or () if entry.id not in ids]
        for entry in known:
            if reason := accepted.get((entry.id, entry.package)):
                lines.append(f"accepted: {pinned} has {entry.id}, {entry.summary}: {reason}")
            else:
                lines.append(f"{pinned} has {entry.id}: {entry.summary}. Use a version without it")
                is_good = False
    if ask is None:
        lines.append("the package index was not asked: make vulnerabilities asks it")
    elif unknown:
        lines.append(f"no data of the package index on {len(unknown)} of {len(packages)}: {', '.join(unknown)}")
    lines.append(f"{len(packages)} packages and {len(jars)} jars, {len(listed)} vulnerabilities in {LIST.name}")
    return lines, is_good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ask-index", action="store_true")
    ask = ask_index if parser.parse_args().ask_index else None
    packages = locked_packages(sorted((ROOT / "locks").glob("*.txt")))
    lines, is_good = check(packages, pinned_jars(), read_list(), ask)
    print("\n".join(lines))
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
