"""Parses locations: paths of the local file system, `file:` URIs, and URLs of object stores.

Every other scheme is refused by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
"""With one slash too: `pathlib` merges the two of a URI."""
_OBJECT_STORES = {"s3": "s3://bucket/prefix"}
_MEANT = {"s3a": "s3", "s3n": "s3"}


class UnsupportedLocation(ValueError):
    """A location that is neither in the local file system nor in an object store that is supported."""


def is_uri(text: str) -> bool:
    """Return whether a text begins with a scheme."""
    return _SCHEME.match(text) is not None


def is_object_store(location: str) -> bool:
    """Return whether a location is in an object store.

    >>> is_object_store("s3://bucket/lake"), is_object_store("lake")
    (True, False)
    """
    return _scheme(location) in _OBJECT_STORES


def local_path(location: str) -> Path:
    """Convert a location to a path. Raises UnsupportedLocation.

    >>> local_path("file:///data/lake"), local_path("~lake/a:b")
    (PosixPath('/data/lake'), PosixPath('~lake/a:b'))
    """
    scheme = _scheme(location)
    if scheme is None:
        return Path(location)
    if scheme in _OBJECT_STORES:
        raise UnsupportedLocation(
            f"{_without_user(location)} is on {scheme}, and this must be a local file: name a path or a file:// URI"
        )
    if scheme != "file":
        raise _unsupported(location, scheme)
    parts = urlsplit(location)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise UnsupportedLocation(f"{location} is not a local file. Write file:///absolute/path")
    return Path(unquote(parts.path))


def lake_location(location: str, directory: Path) -> str:
    """Return the absolute location of a lake; a relative path begins at a directory. Raises UnsupportedLocation.

    >>> lake_location("s3://bucket/a/lake/", Path("/x")), lake_location("lake", Path("/x"))
    ('s3://bucket/a/lake', '/x/lake')
    """
    scheme = _scheme(location)
    if scheme is None or scheme not in _OBJECT_STORES:
        return str(directory / local_path(location).expanduser())
    parts = urlsplit(location)
    host, path = parts.netloc, parts.path.strip("/")
    if not host or ":" in host or "@" in host or not path or parts.query or parts.fragment:
        raise UnsupportedLocation(
            f"{_without_user(location)} is not the location of a lake. Write {_OBJECT_STORES[scheme]}"
        )
    return f"{scheme}://{host}/{path}"


def _without_user(location: str) -> str:
    """Leave out what is before an @: it may be a password."""
    return re.sub(r"//[^/@]*@", "//", location)


def _scheme(location: str) -> str | None:
    match = _SCHEME.match(location)
    return None if match is None else match["scheme"].lower()


def _unsupported(location: str, scheme: str) -> UnsupportedLocation:
    meant = f" Is {_OBJECT_STORES[_MEANT[scheme]]} meant?" if scheme in _MEANT else ""
    return UnsupportedLocation(
        f"{_without_user(location)} is on {scheme}, which is not supported. Name a local path, a file:// URI, or "
        f"{', '.join(_OBJECT_STORES.values())}.{meant}"
    )
