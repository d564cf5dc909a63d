"""The command line of `ottla server`: what is read without typer means what typer would read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli import server
from ottla.cli.server_start import OPTIONS, NotRead, ServerOptions, read

COMMAND: Any = typer.main.get_command(server.app)
VALUES = {
    "port": "9093",
    "host": "localhost",
    "data": "/srv/data",
    "config": "server.properties",
    "option": "log.segment.bytes=1048576",
    "log_file": "broker.log",
    "ready_file": "/run/ready",
    "shape": "json",
    "workers": "2",
    "brokers": "3",
    "control_port": "8083",
    "control_token": "secret",
    "store_socket": "/run/store",
    "init_user": "admin",
    "init_password_file": "/run/secrets/admin",
}
NAMES = [(option.name, word) for option in COMMAND.params for word in option.opts]
WORDS = [word for _, word in NAMES] + [f"{word}={VALUES[name]}" for name, word in NAMES if name in VALUES]


def as_typer_reads(arguments: list[str]) -> dict[str, object]:
    return _texts(COMMAND.make_context("server", list(arguments)).params)


def _texts(options: dict[str, Any]) -> dict[str, object]:
    found = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return {**found, "option": tuple(options["option"] or ())}


def test_both_have_the_same_options_with_the_same_defaults() -> None:
    assert as_typer_reads([]) == _texts(ServerOptions()._asdict())


@pytest.mark.parametrize(("name", "word"), NAMES)
def test_each_option_is_read_by_each_of_its_names(name: str, word: str) -> None:
    arguments = [word, VALUES[name]] if name in VALUES else [word]
    read_here = read(arguments)
    assert read_here != ServerOptions()
    assert _texts(read_here._asdict()) == as_typer_reads(arguments)


@given(
    st.lists(
        st.sampled_from([*WORDS, *VALUES.values(), "", "-", "--", "65536", "0", "-1", "1_0", "text", "x"]), max_size=6
    )
)
def test_arguments_are_read_here_as_typer_reads_them(arguments: list[str]) -> None:
    try:
        read_here = read(arguments)
    except NotRead:
        return
    assert _texts(read_here._asdict()) == as_typer_reads(arguments)


@pytest.mark.parametrize("word", ["--help", "-h", "--unknown", "topic", "--", "-p9093", "--dev=true"])
def test_the_help_and_mistakes_are_for_typer(word: str) -> None:
    for arguments in ([word], ["--port", "9093", word], ["--port", word]):
        with pytest.raises(NotRead):
            read(arguments)


def test_each_option_sets_a_field_and_is_declared_for_typer() -> None:
    assert {option.field for option in OPTIONS} == set(ServerOptions._fields)
    assert {word for _, word in NAMES} == {name for option in OPTIONS for name in option.names}
