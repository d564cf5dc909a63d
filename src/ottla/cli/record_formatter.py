r"""Formats records for `consume` by format strings such as `%t %p %o %k %v\n`, compiled once.

The syntax is kcat's, with names in braces to change how bytes are printed: `%v{hex}`, `%k{base64}`. `HELP` is the one
description; docs/cli.md and `--help` show it. Values are printed as their bytes. No I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta

from ottla.cli.record_json import TextRecord, to_json
from ottla.client.times import UNIX_EPOCH

HELP = """\
%t  topic            %k  key               %K  bytes in the key (-1: null)
%p  partition        %v  value (or %s)     %V  bytes in the value (or %S)
%o  offset           %h  headers: a=1,b=2  %H  number of headers
%T  timestamp in ms  %d  timestamp as 2015-05-17T10:00:00.000Z
%j  the whole record as a JSON line        %%  a percent sign
%k{hex} %v{hex}        bytes as hexadecimal
%k{base64} %v{base64}  bytes as base64
%k{json} %v{json}      a JSON text or null (bytes not in UTF-8 as \\ufffd)
\\n \\t \\r \\0 \\\\ \\xHH \\uHHHH
                       line end, tab, return, zero, backslash, a byte,
                       a character"""

FieldFormatter = Callable[[TextRecord], bytes]
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "a": b"\a", "e": b"\x1b"}
_HEX_DIGITS = {"x": 2, "u": 4}


class InvalidFormat(ValueError):
    """A format string is invalid; the message has the position."""


def compile_format(text: str, *, null: bytes = b"") -> Callable[[TextRecord], bytes]:
    r"""Compile a format string. `null` is printed for a key or value that is null. Raises `InvalidFormat`.

    >>> compile_format(r"%p:%o %k=%v\n")(TextRecord(key=b"k", value=b"v", partition=0, offset=7))
    b'0:7 k=v\n'
    """
    pieces: list[bytes | FieldFormatter] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            literal, at = _escape(text, at)
            pieces.append(literal)
        elif text[at] == "%":
            piece, at = _directive(text, at, null)
            pieces.append(piece)
        else:
            end = min((i for mark in "\\%" if (i := text.find(mark, at)) >= 0), default=len(text))
            pieces.append(text[at:end].encode("utf-8", "surrogateescape"))
            at = end
    return _joined(_merged(pieces))


def header_text(headers: list[tuple[str, bytes | None]]) -> bytes:
    """Format headers as `a=1,b=2`; a null value has no equals sign."""
    return b",".join(
        name.encode("utf-8", "surrogatepass") + (b"" if value is None else b"=" + value) for name, value in headers
    )


def time_text(timestamp_ms: int | None) -> str:
    """Format a timestamp as `--from @` accepts it; empty for none.

    >>> time_text(1431856800250)
    '2015-05-17T10:00:00.250Z'
    """
    if timestamp_ms is None or timestamp_ms < 0:
        return ""
    try:
        moment = UNIX_EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms after 1970"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def _escape(text: str, at: int) -> tuple[bytes, int]:
    letter = text[at + 1 : at + 2]
    if letter in _HEX_DIGITS:
        digits = text[at + 2 : at + 2 + _HEX_DIGITS[letter]]
        try:
            number = int(digits, 16)
        except ValueError:
            number = -1
        if number < 0 or len(digits) < _HEX_DIGITS[letter]:
            raise InvalidFormat(f"\\{letter} at position {at + 1} needs {_HEX_DIGITS[letter]} hexadecimal digits")
        coded = bytes([number]) if letter == "x" else chr(number).encode("utf-8", "surrogatepass")
        return coded, at + 2 + len(digits)
    if letter not in _ESCAPES:
        raise InvalidFormat(f"unknown escape \\{letter} at position {at + 1}; write \\\\ for a backslash")
    return _ESCAPES[letter], at + 2


def _directive(text: str, at: int, null: bytes) -> tuple[bytes | FieldFormatter, int]:
    letter = text[at + 1 : at + 2]
    end, how = at + 2, ""
    if text[end : end + 1] == "{" and letter in {"k", "v", "s"}:
        close = text.find("}", end)
        if close < 0:
            raise InvalidFormat(f"the brace after %{letter} at position {at + 1} is not closed")
        how, end = text[end + 1 : close], close + 1
    match letter:
        case "%":
            return b"%", end
        case "k":
            return _bytes_formatter(lambda line: line.key, how, null), end
        case "v" | "s":
            return _bytes_formatter(lambda line: line.value, how, null), end
    piece = _PLAIN.get(letter)
    if piece is None:
        raise InvalidFormat(f"unknown %{letter} at position {at + 1}; write %% for a percent sign")
    return piece, end


def _bytes_formatter(take: Callable[[TextRecord], bytes | None], how: str, null: bytes) -> FieldFormatter:
    match how:
        case "":
            return lambda line: null if (value := take(line)) is None else value
        case "hex":
            return lambda line: null if (value := take(line)) is None else value.hex().encode()
        case "base64":
            return lambda line: null if (value := take(line)) is None else base64.b64encode(value)
        case "json":
            return lambda line: _json_text(take(line))
        case _:
            raise InvalidFormat(f"unknown {{{how}}}; use {{hex}}, {{base64}} or {{json}}")


def _json_text(value: bytes | None) -> bytes:
    import json

    return b"null" if value is None else json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else str(len(value)).encode()


_PLAIN: dict[str, FieldFormatter] = {
    "t": lambda line: (line.topic or "").encode(),
    "p": lambda line: b"%d" % (-1 if line.partition is None else line.partition),
    "o": lambda line: b"%d" % (-1 if line.offset is None else line.offset),
    "T": lambda line: b"%d" % (-1 if line.timestamp_ms is None else line.timestamp_ms),
    "d": lambda line: time_text(line.timestamp_ms).encode(),
    "h": lambda line: header_text(line.headers),
    "H": lambda line: b"%d" % len(line.headers),
    "K": lambda line: _length(line.key),
    "V": lambda line: _length(line.value),
    "S": lambda line: _length(line.value),
    "j": to_json,
}


def _merged(pieces: list[bytes | FieldFormatter]) -> list[bytes | FieldFormatter]:
    merged: list[bytes | FieldFormatter] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, bytes) and isinstance(last, bytes):
            merged[-1] = last + piece
        else:
            merged.append(piece)
    return merged


def _joined(pieces: list[bytes | FieldFormatter]) -> Callable[[TextRecord], bytes]:
    def run(line: TextRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(line) for piece in pieces)

    return run
