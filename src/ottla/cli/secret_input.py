"""Reads passwords: from a prompt, a file or standard input, and never from the command line, which others can see."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import CommandFailed, not_found, usage_error

PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the password; - is standard input.")
]
_STDIN = "-"


def read_secret_file(file: Path) -> str:
    """Return the content of a file, or of standard input for `-`, without the end of its last line.

    Raises CommandFailed, also for an empty one.
    """
    name = "standard input" if str(file) == _STDIN else str(file)
    try:
        content = sys.stdin.buffer.read() if str(file) == _STDIN else file.expanduser().read_bytes()
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except FileNotFoundError:
        raise not_found(f"there is no file {file}") from None
    except OSError as error:
        raise CommandFailed(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{name} is not text in UTF-8") from None
    if not secret:
        raise usage_error(f"{name} has no password")
    return secret


def read_new_password(file: Path | None, *, of: str) -> str:
    """Return a new password from a file, or from a prompt, where it is typed twice. Raises CommandFailed."""
    if file is not None:
        return read_secret_file(file)
    if not sys.stdin.isatty():
        raise usage_error(
            f"the password of {of} is missing", "--password-file FILE reads it, --password-file - from standard input"
        )
    password = getpass(f"Password of {of}: ")
    if not password:
        raise usage_error("the password is empty")
    if getpass("Once more: ") != password:
        raise usage_error("the passwords differ")
    return password
