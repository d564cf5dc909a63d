"""Runs a parser on random and mutated inputs, from one seed; a finding has the bytes that caused it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tests.fuzz.harnesses import HARNESSES, mutated

_BETWEEN_LOOKS_AT_THE_CLOCK = 200


class Finding(AssertionError):
    """A parser did what it must not do on any input."""


@dataclass
class Tally:
    """How many inputs a parser was given, and how many different ones it accepted and refused."""

    inputs: int = 0
    accepted: set[int] = field(default_factory=set)  # hashes
    refused: set[int] = field(default_factory=set)


def fuzz(name: str, *, inputs: int, seed: int) -> Tally:
    """Run a parser on its seeds and on so many more inputs. Raises Finding with the input that broke it."""
    tally = Tally()
    _try_all(name, islice(_inputs(name, seed), inputs), tally)
    return tally


def fuzz_for(name: str, *, seconds: float, seed: int) -> Tally:
    """Run a parser for about `seconds`. Raises Finding with the input that broke it."""
    tally, source = Tally(), _inputs(name, seed)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _try_all(name, islice(source, _BETWEEN_LOOKS_AT_THE_CLOCK), tally)
    return tally


def _inputs(name: str, seed: int) -> Iterator[bytes]:
    """All seeds, then mutated seeds and random bytes without end."""
    known = list(HARNESSES[name][1]())
    yield from known
    source = random.Random(f"{name} {seed}")
    while True:
        is_mutated = source.random() < 0.9
        yield mutated(source.choice(known), source) if is_mutated else source.randbytes(source.randrange(90))


def _try_all(name: str, inputs: Iterator[bytes], tally: Tally) -> None:
    harness = HARNESSES[name][0]
    for data in inputs:
        tally.inputs += 1
        try:
            accepted = harness(data)
        except Exception as error:
            raise Finding(f"{name}: {type(error).__name__}: {error}; input {data.hex()}") from error
        (tally.accepted if accepted else tally.refused).add(hash(data))
