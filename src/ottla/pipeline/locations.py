"""Parses locations: paths of the local file system and `file:` URIs. Every other scheme is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
"""With one slash too: `pathlib` merges the two of a URI."""


class UnsupportedLocation(ValueError):
    """A location that is not in the local file system."""


def is_uri(text: str) -> bool:
    """Return whether a text begins with a scheme."""
    return _SCHEME.match(text) is not None


def local_path(location: str) -> Path:
    """Convert a location to a path. Raises UnsupportedLocation.

    >>> local_path("file:///data/lake"), local_path("~lake/a:b")
    (PosixPath('/data/lake'), PosixPath('~lake/a:b'))
    """
    match = _SCHEME.match(location)
    if match is None:
        return Path(location)
    if match["scheme"].lower() != "file":
        raise UnsupportedLocation(
            f"{location} is on {match['scheme'].lower()}, which is not supported. Tables and files are local: name a "
            "path or a file:// URI, for example a mounted file system"
        )
    parts = urlsplit(location)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise UnsupportedLocation(f"{location} is not a local file. Write file:///absolute/path")
    return Path(unquote(parts.path))


def lake_location(location: str, directory: Path) -> str:
    """Return the absolute location of a lake; a relative path begins at a directory. Raises UnsupportedLocation."""
    return str(directory / local_path(location).expanduser())
