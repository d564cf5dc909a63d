"""What may be set of the broker as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import SECOND_MS, Type, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Who this broker is, where it keeps its data, and what bounds it as a whole."""

    node_id: int = setting(
        "node.id", default=1, kind=Type.INT, at_least=0, synonyms=("broker.id",),
        doc="The broker's number in its cluster. Written into the data directory; it cannot change afterwards, and if "
            "it is not given the directory's counts.",
    )  # fmt: skip
    rack: str = setting(
        "broker.rack",
        default="",
        kind=Type.STRING,
        doc="Where the broker stands; empty means nowhere in particular.",
    )
    log_dirs: tuple[str, ...] = setting(
        "log.dirs", default=(), kind=Type.LIST, synonyms=("log.dir",),
        doc="The directories of the data, best one to a disk. Empty means `ottla` in the user's own data directory "
            "(`$XDG_DATA_HOME`, else `~/.local/share`). A new partition goes where the fewest are.",
    )  # fmt: skip
    metadata_log_dir: str = setting(
        "metadata.log.dir", default="", kind=Type.STRING,
        doc="The directory of the metadata store. Empty means the first of `log.dirs`. The broker does not start "
            "without it.",
    )  # fmt: skip
    segments_open_max: int = setting(
        "ottla.open.segments.max", default=0, kind=Type.INT, at_least=0,
        doc="Segment files kept open between uses; those used longest ago are closed. 0 means a third of the file "
            "handles the process may have (`ulimit -n`). Connections get another third, at two each.",
    )  # fmt: skip
    fetch_bytes_max: int = setting(
        "fetch.max.bytes", default=55 << 20, kind=Type.INT, unit="bytes", at_least=1024,
        doc="No answer to a fetch is larger, but for one first batch.",
    )  # fmt: skip
    fetch_sessions_max: int = setting(
        "max.incremental.fetch.session.cache.slots", default=1000, kind=Type.INT, at_least=0,
        doc="Fetch sessions remembered at once (KIP-227).",
    )  # fmt: skip
    shutdown_ms: int = setting(
        "ottla.shutdown.max.ms", default=10 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=0,
        doc="How long a stop waits for begun requests before it closes their connections.",
    )  # fmt: skip
