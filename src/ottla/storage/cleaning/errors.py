"""Declares how a cleaning can end without a result."""

from __future__ import annotations


class Uncleanable(Exception):
    """The log cannot be compacted as it is: a corrupt batch, or one that no longer fits. It is left untouched."""


class SegmentGone(Exception):
    """A file was deleted while it was read: by retention, with its topic, or by a truncation."""
