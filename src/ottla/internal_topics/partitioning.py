"""Chooses the partition of an internal topic that holds the state of a key."""

from __future__ import annotations


def partition_of(key: str, partitions: int) -> int:
    """Choose a key's partition as Kafka does: abs(Java's `hashCode`) (0 for the smallest int) modulo partitions.

    >>> partition_of("team", 4), partition_of("javagrp", 4), partition_of("", 50)
    (1, 1, 0)
    """
    raw, value = key.encode("utf-16-be"), 0
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return (abs(signed) if signed != -(1 << 31) else 0) % partitions
