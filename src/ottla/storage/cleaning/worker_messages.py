"""Encodes the messages between the broker and its cleaning worker: JSON objects, each after its length in four bytes.

    broker -> worker    {"clean": plan}                begin a pass
                        {"next": {}}                   the group was swapped in: go on
    worker -> broker    {"group": group}               written and synced; then it waits for "next"
                        {"done": pass}                 the end of the pass
                        {"failed": {"kind": .., "why": ..}}

The end of the broker's side ends the worker at once, whatever it is doing.
"""

from __future__ import annotations

import json
import struct
from enum import Enum
from typing import Any

from ottla.storage.cleaning.cleaning_plan import CleanedGroup, Counts, PassDone

LENGTH = struct.Struct(">I")


class Failure(Enum):
    """The reasons for which a pass ends without a result."""

    CORRUPT = "corrupt"  # the log cannot be cleaned as it is
    GONE = "gone"  # files were deleted meanwhile
    DISK = "disk"  # the system refused: no space, a read error
    ERROR = "error"  # a defect


def framed(message: dict[str, Any]) -> bytes:
    """Encode a message as it goes through the pipe."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def step_of(message: dict[str, Any]) -> CleanedGroup | PassDone:
    """Decode a worker's message. Raises KeyError if it is neither of the two."""
    if "group" in message:
        return CleanedGroup(**message["group"])
    done = message["done"]
    return PassDone(end_offset=done["end_offset"], counts=Counts(**done["counts"]))
