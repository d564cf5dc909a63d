"""Reports the directories of topics that the cluster does not know, which are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import PurePath

from ottla.storage.directories.log_directory import LogDirectory

log = logging.getLogger(__name__)

_NAMED_MAX = 10


async def report_unknown_logs(found: Sequence[tuple[LogDirectory, PurePath]], online: Sequence[LogDirectory]) -> None:
    """Log these directories, and those that were set aside earlier: Kafka and `LogDirectory.set_aside_log` do that."""
    try:
        sizes = await asyncio.to_thread(_sizes, found, online)
    except OSError as error:
        log.warning("the directories of unknown topics cannot be listed: %s", error)
        return
    if sizes:
        listed = ", ".join(f"{path} ({size} bytes)" for path, size in sizes[:_NAMED_MAX])
        log.warning(
            "directories of topics that this cluster does not know are kept: %d with %d bytes, %s%s. "
            "Stop the broker and run `ottla log remove-unknown` to list and remove them",
            len(sizes),
            sum(size for _, size in sizes),
            listed,
            ", ..." if len(sizes) > _NAMED_MAX else "",
        )


def _sizes(
    found: Sequence[tuple[LogDirectory, PurePath]], online: Sequence[LogDirectory]
) -> list[tuple[PurePath, int]]:
    set_aside = [(directory, path) for directory in online for path in directory.stray_directories()]
    return [(path, directory.bytes_below(path)) for directory, path in (*found, *set_aside)]
