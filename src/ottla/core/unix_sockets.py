"""Gives unix sockets addresses that are short enough for the system: 107 bytes on Linux, 103 on macOS."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ADDRESS_BYTES_MAX = 103
_DESCRIPTORS = "/proc/self/fd"


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Return an address of the socket at a path of any length, for `bind` or `connect` within the context."""
    if hasattr(os, "O_PATH") and os.path.isdir(_DESCRIPTORS):  # noqa: PTH112 - as its descriptor is named below
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{_DESCRIPTORS}/{directory}/{path.name}"
        finally:
            os.close(directory)
    elif len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
    else:
        import tempfile  # with `random` and `shutil`: not for every start

        with tempfile.TemporaryDirectory(prefix="ottla-") as directory_name:
            link = Path(directory_name, "to")
            link.symlink_to(path.parent.absolute())
            yield str(link / path.name)
