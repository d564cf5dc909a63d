"""Reads the subject and the expiry of X.509 certificates, and formats names as Java does (RFC 2253).

The principal of a client is its certificate's subject as Kafka, which is Java, prints it: `CN=client,OU=Ops,O=Example`.
ACLs and mapping rules are written for this text. OpenSSL and other libraries print names otherwise, so that they are
read here from the certificate itself, which OpenSSL has verified before.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 has names for; Java prints all others as numbers, with their values in hexadecimal."""

_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, TeletexString, IA5String, GeneralString, BMPString: Java reads all of them as UTF-8."""

_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SEQUENCE, _SET, _OID, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x31, 0x06, 0x17, 0x18, 0xA0


class Certificate(NamedTuple):
    """Holds what is read of a certificate."""

    subject: str  # as Java prints it
    not_after: datetime


class _Element(NamedTuple):
    """One element of DER: its tag, and where it begins, its content begins, and it ends."""

    tag: int
    start: int
    content: int
    end: int


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate. Raises ValueError."""
    try:
        fields = _children(der, _children(der, _element(der, 0, _SEQUENCE))[0])
        if fields[0].tag == _VERSION:
            fields = fields[1:]
        _serial, _algorithm, _issuer, validity, subject = fields[:5]
        return Certificate(_name(der, subject), _time(der, _children(der, validity)[1]))
    except IndexError as error:
        raise ValueError("it is no X.509 certificate") from error


def distinguished_name(der: bytes) -> str:
    """Return the subject of a certificate as Java prints it. Raises ValueError."""
    return read_certificate(der).subject


def format_name(der: bytes) -> str:
    """Return a name, such as that of an issuer, as Java prints it. Raises ValueError."""
    return _name(der, _element(der, 0, _SEQUENCE))


def _name(der: bytes, name: _Element) -> str:
    """Format a Name: its relative names in reverse order, the parts of one with `+` between them."""
    return ",".join(
        "+".join(_attribute(der, attribute) for attribute in _children(der, relative))
        for relative in reversed(_children(der, name))
    )


def _attribute(der: bytes, attribute: _Element) -> str:
    kind, value = _children(der, attribute)
    identifier = _object_identifier(der[kind.content : kind.end])
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or value.tag not in _TEXT_TAGS:
        return f"{keyword or identifier}=#{der[value.start : value.end].hex()}"
    return f"{keyword}={_escaped(der[value.content : value.end].decode('utf-8', errors='replace'))}"


def _escaped(text: str) -> str:
    """Escape a value as Java does, spaces at its ends too."""
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text.rstrip(" "))
    return "".join(
        "\\00"
        if letter == "\0"
        else f"\\{letter}"
        if letter in _ESCAPED or (letter == " " and not lead <= place < trail)
        else letter
        for place, letter in enumerate(text)
    )


def _object_identifier(content: bytes) -> str:
    """Format an object identifier.

    >>> _object_identifier(bytes.fromhex("2a864886f70d010901"))
    '1.2.840.113549.1.9.1'
    """
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _time(der: bytes, element: _Element) -> datetime:
    text = der[element.content : element.end].decode("ascii")
    if element.tag == _UTC_TIME:  # of the years 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, start: int, tag: int | None = None) -> _Element:
    """Return the element that begins at a place. Raises ValueError and IndexError."""
    own_tag, length, content = der[start], der[start + 1], start + 2
    if length & 0x80:
        size = length & 0x7F
        length, content = int.from_bytes(der[content : content + size], "big"), content + size
    if (tag is not None and own_tag != tag) or content + length > len(der):
        raise ValueError("it is no X.509 certificate")
    return _Element(own_tag, start, content, content + length)


def _children(der: bytes, parent: _Element) -> list[_Element]:
    """Return the elements inside a constructed one."""
    elements: list[_Element] = []
    start = parent.content
    while start < parent.end:
        elements.append(_element(der, start))
        start = elements[-1].end
    return elements
