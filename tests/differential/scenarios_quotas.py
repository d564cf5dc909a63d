"""What both brokers are asked about quotas: which are taken, how they are listed, and what is refused in which words."""

from __future__ import annotations

from typing import Any

from tests.differential.peer import Peer
from tests.support.processes import until

EXACT, DEFAULT, SPECIFIED = range(3)
FILTERS: dict[str, tuple[tuple[str, int, str | None], ...]] = {
    "all": (),
    "of a user and a client": (("user", EXACT, "a"), ("client-id", DEFAULT, None)),
    "of a user and any client": (("user", EXACT, "a"), ("client-id", SPECIFIED, None)),
    "of a user": (("user", EXACT, "a"),),
    "of a user whose name is quoted": (("user", EXACT, "CN=b c,O=*~"),),
    "of the user whose name is the default's": (("user", EXACT, "<default>"),),
    "of the default user": (("user", DEFAULT, None),),
    "of any user": (("user", SPECIFIED, None),),
    "of any client": (("client-id", SPECIFIED, None),),
    "of any address": (("ip", SPECIFIED, None),),
    "of the default address": (("ip", DEFAULT, None),),
    "of an address": (("ip", EXACT, "::1"),),
    "of an empty type": (("", EXACT, "a"),),
    "of a type twice": (("user", EXACT, "a"), ("user", DEFAULT, None)),
    "of a type twice, by name and any": (("user", SPECIFIED, None), ("user", EXACT, "a")),
    "of no type": (("group", EXACT, "a"),),
    "exactly nothing": (("user", EXACT, None),),
    "the default, by name": (("user", DEFAULT, "a"),),
    "any, by name": (("user", SPECIFIED, "a"),),
    "in no way": (("user", 9, None),),
    "of an address and a user": (("ip", EXACT, "127.0.0.1"), ("user", DEFAULT, None)),
    "an address that is none": (("ip", EXACT, "nowhere at all"),),
}


def client_quotas(peer: Peer) -> None:
    """Before any is set; filters are checked."""
    for version in peer.each("describe_client_quotas"):
        _describe_quotas(peer, version)


def _describe_quotas(peer: Peer, version: int) -> None:
    for label, components in FILTERS.items():
        asked = [{"entity_type": kind, "match_type": how, "match": what} for kind, how, what in components]
        for strict in (False, True):
            answer = peer.quietly("describe_client_quotas", version, components=asked, strict=strict)
            found = [(_entity(each), _values(each)) for each in answer["entries"] or ()]
            peer.note(label, "describe_client_quotas", version, [answer["error_code"], sorted(found, key=str)])
            peer.note(f"{label}, the message", "describe_client_quotas", version, [answer["error_message"]])


def _entity(entry: dict[str, Any]) -> list[tuple[str, str | None]]:
    return sorted((part["entity_type"], part["entity_name"]) for part in entry["entity"])


def _values(entry: dict[str, Any]) -> list[tuple[str, float]]:
    return sorted((each["key"], each["value"]) for each in entry["values"])


_Change = tuple[tuple[tuple[str, str | None], ...], tuple[tuple[str, float | None], ...]]
"""An entity and the quotas to set, or (None) to remove."""
PRODUCE, FETCH, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
ALTERATIONS: dict[str, tuple[_Change, ...]] = {
    "of a user": (((("user", "a"),), ((PRODUCE, 1024), (TIME, 12.5))),),
    "of the default user": (((("user", None),), ((FETCH, 1e9), (MUTATIONS, 0.125))),),
    "of a client of a user": (((("user", "a"), ("client-id", "c")), ((PRODUCE, 5),)),),
    "of the default client of a user": (((("client-id", None), ("user", "a")), ((PRODUCE, 6),)),),
    "of a client of the default user": (((("user", None), ("client-id", "c")), ((FETCH, 7),)),),
    "of the default client of the default user": (((("user", None), ("client-id", None)), ((TIME, 2e7),)),),
    "of a client": (((("client-id", "c d"),), ((PRODUCE, 8),)),),
    "of a user whose name is quoted": (((("user", "CN=b c,O=*~"),), ((PRODUCE, 9),)),),
    "of a user whose name is the default's": (((("user", "<default>"),), ((PRODUCE, 10),)),),
    "of addresses": (((("ip", "::1"),), ((CONNECTIONS, 3),)), ((("ip", None),), ((CONNECTIONS, 30),))),
    "remove one": (((("user", "a"),), ((TIME, None), (MUTATIONS, None))),),
    "remove what is no key": (((("user", "a"),), (("nothing", None),)),),
    "remove the last": (((("client-id", "c d"),), ((PRODUCE, None),)),),
    "no key": (((("user", "a"),), (("nothing", 1),)),),
    "no entity": (((), ((PRODUCE, 1),)),),
    "no type": (((("group", "a"),), ((PRODUCE, 1),)),),
    "an empty user": (((("user", ""),), ((PRODUCE, 1),)),),
    "an empty client": (((("client-id", ""),), ((PRODUCE, 1),)),),
    "an empty address": (((("ip", ""),), ((CONNECTIONS, 1),)),),
    "an address and a user": (((("ip", "::1"), ("user", "a")), ((CONNECTIONS, 1),)),),
    "an address and a client": (((("client-id", "a"), ("ip", "::1")), ((CONNECTIONS, 1),)),),
    "a key of addresses": (((("user", "a"),), ((CONNECTIONS, 1),)),),
    "a key of users": (((("ip", "::1"),), ((PRODUCE, 1),)),),
    "no address": (((("ip", "no address at all"),), ((CONNECTIONS, 1),)),),
    "nothing": (((("user", "a"),), ((PRODUCE, 0),)),),
    "less than nothing": (((("user", "a"),), ((TIME, -1),)),),
    "a fraction": (((("user", "a"),), ((PRODUCE, 1.5),)),),
    "a fraction of a connection": (((("ip", "::1"),), ((CONNECTIONS, 0.5),)),),
    "too many connections": (((("ip", "::1"),), ((CONNECTIONS, 2.0**31),)),),
    "too many bytes": (((("user", "a"),), ((FETCH, 1e19),)),),
    "the most bytes": (((("user", "most"),), ((FETCH, 2.0**62),)),),
    "a key twice": (((("user", "twice"),), ((PRODUCE, 1), (PRODUCE, 2))),),
    "an entity twice": (((("user", "b"),), ((PRODUCE, 1),)), ((("user", "b"),), ((PRODUCE, 2),))),
    "a client of a user twice": (((("user", "b"), ("client-id", None)), ((FETCH, 1),)),) * 2,
    "a type twice": (((("user", "x"), ("user", "y")), ((PRODUCE, 1),)),),
    "one right, one wrong": (((("user", "d"),), ((PRODUCE, 4),)), ((("user", "e"),), ((PRODUCE, 4), (TIME, -4)))),
    "nothing to do": (((("user", "f"),), ()),),
    "no entry": (),
}  # fmt: skip


def alter_client_quotas(peer: Peer) -> None:
    """Quotas of all kinds of entities are set, changed, removed and refused."""
    for version in peer.each("alter_client_quotas"):
        for label, changes in ALTERATIONS.items():
            entries = [
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                    "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
                }
                for entity, ops in changes
            ]
            for validate_only in (True, False):
                answer = peer.quietly("alter_client_quotas", version, entries=entries, validate_only=validate_only)
                found = [[_entity(each), each["error_code"], each["error_message"]] for each in answer["entries"]]
                peer.note(label, "alter_client_quotas", version, sorted(found, key=str))
            _until_described(peer, label)
        _describe_quotas(peer, peer.near("describe_client_quotas", version))
        _remove_quotas(peer)


def _until_described(peer: Peer, label: str) -> None:
    """Note all quotas, once a broker has seen the last change: one that follows and is seen."""
    marker = [{"entity_type": "user", "entity_name": f"{label}, seen"}]
    op = {"key": PRODUCE, "value": 1.0, "remove": False}
    peer.quietly("alter_client_quotas", 1, entries=[{"entity": marker, "ops": [op]}], validate_only=False)
    asked = [{"entity_type": "user", "match_type": EXACT, "match": f"{label}, seen"}]
    until(
        lambda: bool(peer.quietly("describe_client_quotas", 1, components=asked, strict=True)["entries"]), timeout_s=10
    )
    op["remove"] = True
    peer.quietly("alter_client_quotas", 1, entries=[{"entity": marker, "ops": [op]}], validate_only=False)
    until(lambda: not peer.quietly("describe_client_quotas", 1, components=asked, strict=True)["entries"], timeout_s=10)
    answer = peer.quietly("describe_client_quotas", 1, components=[], strict=False)
    found = [(_entity(each), _values(each)) for each in answer["entries"]]
    peer.note(f"after {label}", "describe_client_quotas", 1, sorted(found, key=str))


def _remove_quotas(peer: Peer) -> None:
    """Remove all quotas."""
    answer = peer.quietly("describe_client_quotas", 1, components=[], strict=False)
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in _entity(each)],
            "ops": [{"key": key, "value": 0.0, "remove": True} for key, _ in _values(each)],
        }
        for each in answer["entries"]
    ]
    peer.quietly("alter_client_quotas", 1, entries=entries, validate_only=False)
    _until_described(peer, "all are removed")
