"""Handlers answer elements and leave the loop over them, in slices of work, to `broker/requests/elements.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HANDLERS = Path(__file__).resolve().parents[2] / "src" / "ottla" / "broker" / "handlers"
SERVED_AS_CHUNKS = {"fetch", "produce"}
"""The long forms of deferred APIs, which decode and encode themselves."""

NOT_YET: set[str] = {
    "alter_partition",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "create_acls",
    "create_topics",
    "delete_acls",
    "delete_records",
    "describe_log_dirs",
    "describe_topic_partitions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "find_coordinator",
    "list_config_resources",
    "list_partition_reassignments",
    "offset_commit",
    "txn_offset_commit",
    "unregister_broker",
}
"""Handlers that still loop themselves: this set only shrinks."""


def mentions_slices(path: Path) -> bool:
    return re.search(r"slices|LoopSlices", path.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("path", sorted(HANDLERS.glob("*.py")), ids=lambda path: path.stem)
def test_a_handler_does_not_mention_slices(path: Path) -> None:
    assert mentions_slices(path) == (path.stem in NOT_YET | SERVED_AS_CHUNKS)
