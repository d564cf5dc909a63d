"""Scenarios about clients' metrics (KIP-714), which neither broker advertises by default, and both answer."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from tests.differential.peer import Peer
from tests.support.processes import until
from tests.support.wire_client import NO_ID, Answer

CLIENT_METRICS, SET = 16, 0
GET, PUSH = "get_telemetry_subscriptions", "push_telemetry"


def client_metrics(peer: Peer) -> None:
    """What a client is asked to push, and how pushes are answered."""
    ids = (uuid.UUID(int=number << 64 | 7) for number in itertools.count(1))

    def alter(label: str, name: str, **settings: str) -> None:
        configs = [{"name": key, "config_operation": SET, "value": value} for key, value in settings.items()]
        resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
        peer.ask(label, "incremental_alter_configs", 1, resources=[resource])

    def get(client: uuid.UUID) -> Answer:
        answer = peer.quietly(GET, 0, client_instance_id=client)
        return {**answer, "requested_metrics": sorted(answer["requested_metrics"])}

    def note(label: str, answer: Answer) -> None:
        peer.note(label, GET, 0, {**answer, "subscription_id": bool(answer["subscription_id"])})

    def push(label: str, client: uuid.UUID, **fields: Any) -> None:
        wanted = {"subscription_id": 0, "terminating": False, "compression_type": 0, "metrics": b"", **fields}
        peer.ask(label, PUSH, 0, client_instance_id=client, **wanted)

    for settings in (
        {"interval.ms": "99"},
        {"interval.ms": "3600001"},
        {"interval.ms": "soon"},
        {"unknown": "a"},
        {"match": "client_id"},
        {"match": "client_id="},
        {"match": "client_id=a=b"},
        {"match": "client_id=a="},
        {"match": "client_name=a"},
        {"match": "client_id=("},
    ):
        alter(f"refused {settings}", "refused", **settings)
    note("no subscription", get(next(ids)))
    given = get(NO_ID)
    note("a new client", {**given, "client_instance_id": given["client_instance_id"] != NO_ID})
    alter("made", "one", **{"metrics": "b.,a.", "interval.ms": "60000"})
    alter("made too", "two", **{"metrics": "a.,c.", "interval.ms": "90000", "match": "client_id=.*"})
    alter("for others", "three", **{"metrics": "*", "interval.ms": "100", "match": "client_id=other"})
    until(lambda: get(uuid.uuid4())["requested_metrics"] == ["a.", "b.", "c."], what="the subscriptions")
    client = next(ids)
    first = get(client)
    note("two subscriptions", first)
    note("at once again", get(client))
    push("right after it", client, subscription_id=first["subscription_id"], metrics=b"no metrics")
    push("at once again", client, subscription_id=first["subscription_id"])
    push("the last one", client, subscription_id=first["subscription_id"], terminating=True)
    push("after the last one", client, subscription_id=first["subscription_id"], terminating=True)
    push("no id", NO_ID)
    push("a reserved id", uuid.UUID(int=1))
    push("who never asked", next(ids))
    refused: dict[str, dict[str, Any]] = {
        "another subscription": {"subscription_id": 1},
        "codec 5": {"compression_type": 5},
        "codec -1": {"compression_type": -1},
        "too large": {"metrics": bytes((1 << 20) + 1)},
        "as large as may be": {"metrics": bytes(1 << 20)},
        "not compressed": {"metrics": b"\xff", "compression_type": 4},
    }
    for label, fields in refused.items():
        client = next(ids)
        push(label, client, **{"subscription_id": get(client)["subscription_id"], **fields})
        again = get(client)
        note(f"after {label}", again)
        push(f"then, after {label}", client, subscription_id=again["subscription_id"])
