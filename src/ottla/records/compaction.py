"""Reads records for compaction: collects their keys, and selects the records to keep. Used by `storage/cleaning` only.

The loops are `records/_compaction.py` or its compiled twin (`hatch_build.py`). The compiled one digests keys itself,
with a keyed SipHash; the plain one leaves that to hashlib, which is twenty times as fast as the same loop in Python.
"""

from __future__ import annotations

import hashlib
import struct
from types import ModuleType

from ottla.compiled import fastest
from ottla.records import _compaction
from ottla.records._compaction import Digest

KEY_BYTES = 16
_HALVES = struct.Struct("<QQ")


LOOP = fastest(_compaction)
"""The module whose `note_keys`, `choose`, `move_slots` and `shifted` are to be used."""

COMPILED = LOOP is not _compaction
"""Whether compaction runs as machine code here."""


def halves(key: bytes) -> tuple[int, int]:
    """Return the secret key of a table as the loops take it."""
    first, second = _HALVES.unpack(key)
    return first, second


def digest_of(loop: ModuleType, secret: bytes) -> Digest | None:
    """Return the function that digests keys for `loop`; None if the loop does so itself."""
    if loop is not _compaction:
        return None

    def digest(key: bytes) -> tuple[int, int]:
        first, second = _HALVES.unpack(hashlib.blake2b(key, digest_size=KEY_BYTES, key=secret).digest())
        return first, second

    return digest
