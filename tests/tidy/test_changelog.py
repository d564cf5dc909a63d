"""The changelog is short, and the entries of the next version are well-formed files (changes/README.md)."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
TYPES = [entry["directory"] for entry in SETTINGS["type"]]
NAME = re.compile(rf"\+[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(TYPES)})\.md")
WORDS_MAX = 50


def problem_of(name: str, text: str) -> str | None:
    """Return what is wrong with an entry of the next version, if anything."""
    if not NAME.fullmatch(name):
        return f"{name}: the name must be +NAME.TYPE.md, with a type of {', '.join(TYPES)}"
    if len(text.split()) > WORDS_MAX:
        return f"{name}: {len(text.split())} words; {WORDS_MAX} are the most"
    if not re.fullmatch(r"[A-Z`0-9](?:[^\n]|\n(?=[^\n#*-]))*\.\n?", text):
        return f"{name}: it must be one paragraph of sentences"
    return None


def test_every_entry_of_the_next_version_is_well_formed() -> None:
    entries = sorted(path for path in (ROOT / SETTINGS["directory"]).iterdir() if path.name != "README.md")

    assert not [problem for path in entries if (problem := problem_of(path.name, path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("share-locks.new.md", "Locks may be set."),
        ("+share-locks.feature.md", "Locks may be set."),
        ("+share-locks.new.txt", "Locks may be set."),
        ("+share-locks.new.md", "- Locks may be set.\n- So may others.\n"),
        ("+share-locks.new.md", "Locks may be set"),
        ("+share-locks.new.md", ""),
        ("+share-locks.new.md", "Locks. " * 51),
    ],
)
def test_an_entry_that_is_not_well_formed_is_noticed(name: str, text: str) -> None:
    assert problem_of(name, text) is not None


def test_an_entry_of_two_sentences_over_two_lines_is_well_formed() -> None:
    assert problem_of("+share-locks.new.md", "`share.locks` may be set.\nThe default is that of the broker.\n") is None


def test_the_page_about_entries_names_their_types_and_the_changelog_has_the_place_for_them() -> None:
    page = (ROOT / SETTINGS["directory"] / "README.md").read_text(encoding="utf-8")
    changelog = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8")

    assert [name for name in re.findall(r"`([a-z]+)`", page) if name in TYPES] == TYPES
    assert changelog.count(SETTINGS["start_string"]) == 1


def test_no_line_of_the_changelog_is_longer_than_an_entry_may_be() -> None:
    lines = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line.split()) > WORDS_MAX]
