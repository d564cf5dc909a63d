"""Draws scripts: steps of several clients on the same groups, share groups and transactional ids, in odd orders.

A step names what a client says about itself by words ("its own id", "the generation before"), never by value: each
broker chooses its own ids, so that the same script can be played on several.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

CLIENTS = 4
GROUPS = 3
TRANSACTIONAL_IDS = 2
TOPICS = ("mix-a", "mix-b")
STEPS = 60

OWN, OTHERS, NONE = "its own", "another client's", "none"
CURRENT, BEFORE, AFTER = "current", "the one before", "the one after"

# How often each kind of step is drawn.
WEIGHTS = {
    "join": 14,
    "sync": 14,
    "classic_heartbeat": 6,
    "leave": 3,
    "consumer_join": 10,
    "consumer_heartbeat": 14,
    "consumer_leave": 3,
    "share_join": 6,
    "share_heartbeat": 6,
    "share_leave": 2,
    "share_fetch": 6,
    "share_acknowledge": 5,
    "commit": 8,
    "fetch_offsets": 4,
    "delete_offsets": 2,
    "delete_group": 2,
    "describe": 3,
    "alter_share_offsets": 2,
    "delete_share_offsets": 1,
    "describe_share_offsets": 1,
    "init_producer": 5,
    "add_partitions": 6,
    "add_offsets": 4,
    "commit_in_transaction": 5,
    "produce": 6,
    "end_transaction": 8,
    "list_transactions": 2,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One request of one client; `words` say what it is about."""

    client: int
    kind: str
    words: dict[str, Any]

    def __str__(self) -> str:
        return f"client {self.client} {self.kind} " + " ".join(
            f"{name}={value!r}" for name, value in self.words.items()
        )


def draw(seed: int, steps: int = STEPS) -> list[Step]:
    """Return the script of a seed."""
    choices = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    # A script leans to a few kinds and to one group, so that its clients meet there.
    weights = [weight * choices.choice((0, 1, 1, 4)) for weight in weights]
    if not any(weights):
        weights = list(WEIGHTS.values())
    return [
        Step(choices.randrange(CLIENTS), kind, _words(kind, choices))
        for kind in choices.choices(kinds, weights, k=steps)
    ]


def _mostly(choices: random.Random, usual: Any, *others: Any) -> Any:
    return usual if choices.random() < 0.75 else choices.choice(others)


def _words(kind: str, choices: random.Random) -> dict[str, Any]:
    words: dict[str, Any] = {
        "version": choices.random(),  # of the versions that both brokers serve
        "group": _mostly(choices, 0, *range(1, GROUPS)),
        "id": _mostly(choices, OWN, OTHERS, NONE),
        "epoch": _mostly(choices, CURRENT, BEFORE, AFTER),
        "topic": choices.choice(TOPICS),
        "partition": choices.randrange(2),
    }
    match kind:
        case "join" | "consumer_join":
            words["instance"] = _mostly(choices, None, "i", "j")
            words["topics"] = choices.choice((TOPICS, TOPICS[:1], TOPICS[1:]))
            words["full"] = choices.random() < 0.5
        case "consumer_heartbeat" | "share_heartbeat":
            words["instance"] = _mostly(choices, None, "i", "j")
            words["full"] = choices.random() < 0.5
            words["topics"] = _mostly(choices, None, TOPICS, TOPICS[:1], TOPICS[1:])
        case "consumer_leave" | "leave":
            words["instance"] = _mostly(choices, None, "i", "j")
        case "share_acknowledge":
            words["type"] = choices.choice((1, 2, 3))
        case "commit" | "commit_in_transaction":
            words["member"] = choices.choice(("classic", "consumer", NONE))
        case "end_transaction":
            words["committed"] = choices.random() < 0.5
        case _:
            pass
    if kind in _TRANSACTIONAL:
        words["transactional_id"] = choices.randrange(TRANSACTIONAL_IDS)
    return words


_TRANSACTIONAL = frozenset(
    {
        "init_producer",
        "add_partitions",
        "add_offsets",
        "commit_in_transaction",
        "produce",
        "end_transaction",
        "list_transactions",
    }
)
