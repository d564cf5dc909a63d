"""Runs the harnesses for a while, from one seed: a finding tells the bytes that made it."""

from __future__ import annotations

import random
import time

from tests.fuzz.harnesses import HARNESSES, mutated

_TURN = 200


class Finding(AssertionError):
    """A parser did what no bytes may make it do."""


def fuzz(name: str, *, seconds: float, seed: int) -> int:
    """How many inputs the harness saw in about `seconds`. Raises Finding with the input that broke it."""
    _, seeds = HARNESSES[name]
    source = random.Random(f"{name} {seed}")
    known = list(seeds())
    deadline = time.monotonic() + seconds
    seen = 0
    for data in known:
        _try(name, data)
    while True:
        for _ in range(_TURN):
            data = (
                mutated(source.choice(known), source)
                if source.random() < 0.9
                else source.randbytes(source.randrange(90))
            )
            _try(name, data)
        seen += _TURN
        if time.monotonic() >= deadline:
            return seen + len(known)


def _try(name: str, data: bytes) -> None:
    try:
        HARNESSES[name][0](data)
    except Exception as error:
        raise Finding(f"{name}: {type(error).__name__}: {error}; input {data.hex()}") from error
