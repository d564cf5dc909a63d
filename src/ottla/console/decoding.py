"""Shows bytes of a record by their schema in a registry, or in the form that they probably have.

Without a registry Protobuf is shown by field numbers, and Avro by the id of its schema: what the bytes themselves say.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ottla.console.protobuf import NotProtobuf, decode_fields

if TYPE_CHECKING:  # it needs libraries of the pipeline
    from ottla.console.registry import RegistryValues

PREVIEW_CHARACTERS: Final = 300
SHOWN_BYTES_MAX: Final = 256 << 10
_EXCERPT_CHARACTERS: Final = 4000
_MAGIC: Final = 0
_FRAME: Final = struct.Struct(">bi")
_HEX_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True)
class Decoded:
    """The bytes as text, and the name of the form."""

    form: str
    text: str
    size_bytes: int
    note: str = ""
    schema: str = ""
    problem: str = ""
    """The reason why its schema does not decode it; it is shown without the schema then."""

    @property
    def preview(self) -> str:
        """The beginning, on one line."""
        line = " ".join(self.text[: 2 * PREVIEW_CHARACTERS].split())
        return line if len(line) <= PREVIEW_CHARACTERS else line[:PREVIEW_CHARACTERS] + "…"

    @property
    def excerpt(self) -> str:
        """The beginning, for a list of records."""
        is_long = len(self.text) > _EXCERPT_CHARACTERS
        return f"{self.text[:_EXCERPT_CHARACTERS]}\n… (the record's own page shows more)" if is_long else self.text


class NotOfForm(ValueError):
    """Reports that bytes do not have a form."""


def decode(
    data: bytes | None, form: str = "auto", registry: RegistryValues | None = None, *, shown_max: int = SHOWN_BYTES_MAX
) -> Decoded:
    r"""Return bytes in a form, or in the first one that they have. They are shown as hex where they have not.

    With "auto" a value that begins with the id of a schema is shown by that; the registry has been asked for it before.

    >>> decode(b'{"a": 1}').form, decode(b"abc").form, decode(None).form, decode(b"\xff\xfe").form
    ('json', 'text', 'null', 'hex')
    """
    if data is None:
        return Decoded("null", "null", 0)
    if registry is not None and form == "auto" and (decoded := registry.decode(data)) is not None:
        if not decoded.problem:
            text = decoded.text[:shown_max]
            note = "" if text == decoded.text else f"the first {len(text):,} of {len(decoded.text):,} characters"
            return Decoded(decoded.kind, text, len(data), note, decoded.schema)
        return replace(decode(data, shown_max=shown_max), schema=decoded.schema, problem=decoded.problem)
    cut = data[:shown_max]
    note = "" if cut == data else f"the first {len(cut):,} of {len(data):,} bytes"
    for name in FORMS if form == "auto" else (form, "hex"):
        try:
            return Decoded(name, FORMS[name](cut), len(data), note)
        except (ValueError, KeyError, RecursionError, struct.error):
            continue
    return Decoded("hex", hex_lines(cut), len(data), note)


def _json(data: bytes) -> str:
    text = data.decode()
    if text.lstrip()[:1] not in {"{", "[", '"'} and not text.strip().lstrip("-").replace(".", "", 1).isdecimal():
        raise NotOfForm("a word is no JSON")
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False)


def _text(data: bytes) -> str:
    text = data.decode()
    if any(ord(letter) < 32 and letter not in "\t\r\n" for letter in text):
        raise NotOfForm("control characters")
    return text


def _framed(data: bytes) -> str:
    """Show the frame of a schema registry: a zero, the id of the schema, and the bytes."""
    magic, schema_id = _FRAME.unpack_from(data)
    if magic != _MAGIC or not 0 < schema_id < 1 << 24:
        raise NotOfForm("no frame")
    return f"schema {schema_id}, {len(data) - _FRAME.size} bytes\n{hex_lines(data[_FRAME.size :])}"


def _protobuf(data: bytes) -> str:
    try:
        return json.dumps(decode_fields(data), indent=2, ensure_ascii=False)
    except NotProtobuf as error:
        raise NotOfForm(str(error)) from None


def _number(data: bytes) -> str:
    if len(data) == 8:
        return f"{int.from_bytes(data, 'big', signed=True)} (long), {struct.unpack('>d', data)[0]} (double)"
    if len(data) == 4:
        return f"{int.from_bytes(data, 'big', signed=True)} (integer), {struct.unpack('>f', data)[0]:g} (float)"
    if len(data) == 16:
        return f"{uuid.UUID(bytes=data)} (UUID)"
    raise NotOfForm("no number has so many bytes")


def hex_lines(data: bytes) -> str:
    """Return bytes in rows of sixteen, with their offsets and as text.

    >>> hex_lines(b"abc")
    '00000000  61 62 63                                         abc'
    """
    rows = []
    for at in range(0, len(data), _HEX_COLUMNS):
        row = data[at : at + _HEX_COLUMNS]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {shown}")
    return "\n".join(rows)


FORMS: Mapping[str, Callable[[bytes], str]] = MappingProxyType(
    {"json": _json, "text": _text, "avro": _framed, "protobuf": _protobuf, "number": _number, "hex": hex_lines}
)
"""The forms, in the order in which they are tried."""


def parse_json(data: bytes | None) -> Any:
    """Return the value of JSON, or None of anything else."""
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None
