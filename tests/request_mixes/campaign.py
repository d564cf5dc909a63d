"""Plays scripts on brokers beside each other, compares their notes, and shortens a script that shows a difference."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ottla.broker.requests.registry import APIS
from ottla.core.error_codes import ErrorCode
from tests.request_mixes.player import CLOSED, UNANSWERED, Player
from tests.request_mixes.scripts import Step, draw
from tests.support.wire_client import KEYS, Wire

REPEATS = 3  # a difference counts if it comes every time: brokers may differ in when they do something
UNKNOWN_SERVER_ERROR = -1
Versions = dict[str, tuple[int, int]]
_stems = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Finding:
    """A script and the first notes in which it went wrong: those of the reference and those of the subject."""

    seed: int
    steps: list[Step]
    at: int
    expected: list[str]
    received: list[str]

    def __str__(self) -> str:
        script = "\n".join(f"  {number}: {step}" for number, step in enumerate(self.steps[: self.at + 1]))
        return f"seed {self.seed}, after step {self.at}: Kafka {self.expected}, here {self.received}\n{script}"


def common_versions(*ports: int) -> Versions:
    """Return the versions of each API that every broker serves, and that the tests' own client knows."""
    names = {key: name for name, key in KEYS.items()}
    common = {names[int(api.key)]: (api.min_version, api.max_version) for api in APIS.values()}
    for port in ports:
        with Wire(port) as wire:
            served = {each["api_key"]: each for each in wire.call("api_versions", 2)["api_keys"]}
        common = {
            name: (max(low, served[KEYS[name]]["min_version"]), min(high, served[KEYS[name]]["max_version"]))
            for name, (low, high) in common.items()
            if KEYS[name] in served
        }
    return common


def notes_of(port: int, versions: Versions, steps: Sequence[Step]) -> list[list[str]]:
    """Play a script on a broker, in groups and transactions of its own; return what was noted after each step."""
    player = Player(port, versions, f"mix-{time.time_ns():x}-{next(_stems)}")
    try:
        player.prepare()
        for step in steps:
            player.play(step)
        player.finish()
    finally:
        player.close()
    return player.notes


def is_bad(note: str) -> bool:
    """Return whether an answer is none that a right request may get: none, a closed connection, or an unknown error."""
    return note in {CLOSED, UNANSWERED} or note.endswith(CLOSED) or f"error_code', {UNKNOWN_SERVER_ERROR})" in note


def judged(seed: int, versions: Versions, subject: int, reference: int | None, steps: list[Step]) -> Finding | None:
    """Play a script once; return what was wrong, if anything."""
    received = notes_of(subject, versions, steps)
    for at, notes in enumerate(received):
        if any(map(is_bad, notes)):
            return Finding(seed, steps, at, ["an answer"], notes)
    if reference is None:
        return None
    expected = notes_of(reference, versions, steps)
    for at, (ours, theirs) in enumerate(zip(received, expected, strict=True)):
        if any(map(is_bad, theirs)):  # a fault of Kafka's own, after which the two need not agree
            return None
        if ours != theirs:
            if [note for note in ours if not is_superseded(note)] == theirs:
                return None  # here that client goes on, in Kafka it waits
            return Finding(seed, steps, at, theirs, ours)
    return None


def is_superseded(note: str) -> bool:
    """Return whether a JoinGroup ended because its member sent another: Kafka never answers the first."""
    return note.startswith("step ") and note.endswith(f": [('error_code', {int(ErrorCode.REBALANCE_IN_PROGRESS)})]")


def confirmed(play: Callable[[list[Step]], Finding | None], steps: list[Step]) -> Finding | None:
    """Play a script until it goes well once; return the finding if it never does, at the same step with the same notes."""
    first = play(steps)
    for _ in range(REPEATS - 1):
        again = play(steps) if first else None
        if first is None or again is None or (again.at, again.received) != (first.at, first.received):
            return None
    return first


def shortened(play: Callable[[list[Step]], Finding | None], finding: Finding) -> Finding:
    """Leave out each step that the finding does not need."""
    steps = finding.steps[: finding.at + 1]
    kind = steps[-1].kind if finding.at < len(finding.steps) else ""
    for number in reversed(range(len(steps) - 1)):
        fewer = steps[:number] + steps[number + 1 :]
        now = play(fewer)
        if now is not None and (not kind or (now.at < len(fewer) and fewer[now.at].kind == kind)):
            steps, finding = fewer[: now.at + 1], now
    return finding


def seeds_for(seconds: float, first_seed: int) -> Iterator[int]:
    """Yield seeds for some seconds."""
    deadline = time.monotonic() + seconds
    for seed in itertools.count(first_seed):
        if time.monotonic() >= deadline:
            return
        yield seed


def findings(subject: int, reference: int | None, seeds: Iterable[int]) -> Iterator[Finding]:
    """Play a script for each seed; yield what goes wrong each time it is played, shortened."""
    versions = common_versions(subject, *([reference] if reference else ()))
    for seed in seeds:

        def play(steps: list[Step], seed: int = seed) -> Finding | None:
            return judged(seed, versions, subject, reference, steps)

        finding = confirmed(play, draw(seed))
        if finding is not None:
            yield shortened(play, finding)


def errors_of(log: str) -> Counter[str]:
    """Return the errors of a broker's log: the last line of each traceback, or the line itself."""
    errors: Counter[str] = Counter()
    is_in_traceback = False
    for line in log.splitlines():
        if line.startswith("Traceback"):
            is_in_traceback = True
        elif is_in_traceback and line and not line.startswith(" "):
            errors[line] += 1
            is_in_traceback = False
        elif " ERROR " in line and "unexpected error" not in line:
            errors[line.partition(" ERROR ")[2]] += 1
    return errors
