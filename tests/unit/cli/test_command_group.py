"""What is said to a word that is no command."""

from __future__ import annotations

import pytest

from ottla.cli import command_group
from ottla.cli.main import run
from tests.tidy.test_commands import unknown


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["cluster", "describe"], "`ottla cluster brokers`"),
        (["cluster", "broker"], "`ottla cluster brokers`"),
        (["brokers"], "`ottla cluster brokers`"),
        (["topics", "list"], "`ottla topic`"),
        (["prodce"], "`ottla produce`"),
        (["group", "ls"], "`ottla group list`"),
        (["topic", "copy"], "`ottla topic clone`"),
    ],
)
def test_the_command_that_was_meant_is_suggested(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert f"No such command '{words[-1] if words[0] in {'cluster', 'group', 'topic'} else words[0]}'" in (
        shown := capsys.readouterr().err
    )
    assert f"Did you mean {meant}?" in shown


def test_a_word_like_no_command_is_only_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    shown = capsys.readouterr().err
    assert "No such command 'frobnicate'." in shown
    assert "Did you mean" not in shown


def test_the_commands_for_words_of_other_tools_exist_and_the_words_do_not() -> None:
    assert not [meant for meant in command_group._OTHER_WORDS.values() if unknown(meant)]
    assert all(unknown(words) for words in command_group._OTHER_WORDS)
