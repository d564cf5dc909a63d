"""Reads a password from where a profile says it is: the output of a command, a file, or the system's keyring."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_COMMAND_TIMEOUT_S = 120.0
"""Time to type the password of a key."""


class PasswordNotRead(Exception):
    """A password could not be read; the message has no part of it."""


class PasswordKind(Enum):
    """The kinds of places that passwords are read from."""

    COMMAND = "command"
    FILE = "file"
    KEYRING = "keyring"

    @property
    def key(self) -> str:
        """The key in the file of profiles."""
        return f"password_{self.value}"


@dataclass(frozen=True, slots=True)
class PasswordSource:
    """A command line, the path of a file, or the service in the keyring whose password of the user it is."""

    kind: PasswordKind
    text: str


def read_password(source: PasswordSource, *, username: str | None) -> str:
    """Return the password. Raises PasswordNotRead."""
    match source.kind:
        case PasswordKind.COMMAND:
            password = _output_of(source.text)
        case PasswordKind.FILE:
            password = _content_of(source.text)
        case PasswordKind.KEYRING:
            password = _from_keyring(source.text, username)
    if not password:
        raise PasswordNotRead(f"{source.kind.key} gave no password")
    return password


def _output_of(command: str) -> str:
    """Return the first line that a command prints. It runs without a shell, and may ask on the terminal."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PasswordNotRead(f"password_command: {error}") from None
    if not words:
        raise PasswordNotRead("password_command is empty")
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=_COMMAND_TIMEOUT_S)
    except OSError as error:
        raise PasswordNotRead(f"password_command: {words[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise PasswordNotRead(f"password_command did not end within {_COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise PasswordNotRead(f"password_command ended with exit code {done.returncode}")
    return _first_line(done.stdout, "password_command")


def _content_of(file: str) -> str:
    path = Path(file).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PasswordNotRead(f"password_file: {path} cannot be read: {error.strerror}") from None
    return _first_line(content, "password_file")


def _first_line(content: bytes, key: str) -> str:
    try:
        return content.split(b"\n", 1)[0].removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise PasswordNotRead(f"{key} gave no text in UTF-8") from None


def _from_keyring(service: str, username: str | None) -> str:
    if username is None:
        raise PasswordNotRead("password_keyring needs sasl.username")
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise PasswordNotRead("password_keyring needs the library keyring: pip install keyring") from None
    try:
        password = keyring.get_password(service, username)
    except KeyringError as error:
        raise PasswordNotRead(f"password_keyring: {error}") from None
    if password is None:
        raise PasswordNotRead(f"the keyring has no password of {username}: keyring set {service} {username}")
    return str(password)
