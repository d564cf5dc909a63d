"""Odd values for every setting of topics, groups and brokers: which are refused, how, and how a value that is taken is shown."""

from __future__ import annotations

from typing import Any

from ottla.broker.config import declared
from ottla.broker.config_resources import HIDDEN
from ottla.broker.entity_config import OneGroupConfig
from ottla.core.settings import settings_of
from ottla.storage.config import topic_settings
from tests.differential.peer import Peer
from tests.support.processes import until

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
SOURCES = {TOPIC: 1, GROUP: 8}
"""The source of a value that was set for the entity itself."""

ODD = (
    "", " ", ",", "a", "a,a", "a,", ",a", " a , b ", "compact,compact", "compact,", " compact , delete ", "0", " 7 ", "007",
    "-1", "-2", "1.5", " 0.50 ", "99999999999999999999", "true", " TRUE ", "tru", "none", "latest", "by_duration:PT1H",
    "read_committed", "READ_COMMITTED", "60000", "zstd", " zstd ", "1:2", "*", "1:2,1:2", "LogAppendTime",
)  # fmt: skip
"""Blanks, duplicates, empty items, spaces, wrong types, negative, too large, and some that are right somewhere."""

OURS = ("ottla.", "durability", "zookeeper.")
KAFKAS_OWN = (
    "metric.reporters", "early.start.listeners", "num.io.threads", "num.network.threads", "process.roles",
    "controller.quorum.voters", "config.providers", "principal.builder.class", "ssl.engine.factory.class",
    "sasl.server.callback.handler.class", "no.such.setting",
)  # fmt: skip
"""Settings that Ottla does not have."""
SHOWN = (
    ("log.flush.interval.messages", " 09000 "),
    ("log.index.interval.bytes", "004097"),
    ("log.cleanup.policy", " delete , compact "),
    ("log.cleanup.policy", ""),
    ("log.preallocate", " TRUE "),
    ("log.cleaner.min.cleanable.ratio", "0"),
    ("no.such.setting", "any text"),
)
UNSAFE = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def topic_values(peer: Peer) -> None:
    """The settings of topics."""
    names = [name for name in topic_settings() if not name.startswith(OURS) and name not in HIDDEN]
    for number, value in enumerate(ODD):
        topic = peer.topic(f"odd{number}")
        _entity_values(peer, TOPIC, topic, [*names, "no.such.setting"], value)
        peer.delete(topic)


def group_values(peer: Peer) -> None:
    """The settings of groups."""
    names = sorted(spec.key for spec in settings_of(OneGroupConfig).values())
    for number, value in enumerate(ODD):
        _entity_values(peer, GROUP, f"{peer.stem}-odd{number}", [*names, "no.such.setting"], value)


def broker_values(peer: Peer) -> None:
    """The settings of one broker and of all brokers, validated alone: most would change what later scenarios find."""
    names = [name for name in declared() if not name.startswith(OURS) and name not in UNSAFE]
    for value in ODD:
        for name in [*names, *KAFKAS_OWN]:
            codes = [_altered(peer, BROKER, broker, {name: value}, only=True) for broker in ("", "1")]
            peer.note(f"{name}={value!r}", "incremental_alter_configs", 1, codes)


def shown_broker_values(peer: Peer) -> None:
    """How values of harmless settings are shown, for one broker and for all."""
    for broker in ("", "1"):
        for name, value in SHOWN:
            code = _altered(peer, BROKER, broker, {name: value})
            peer.note(f"{broker}: {name}={value!r}", "incremental_alter_configs", 1, code)
            _wait_until(peer, broker, name, is_set=not code)
            described = _described(peer, BROKER, broker, [name])
            peer.note(f"{broker}: {name}={value!r}, described", "describe_configs", 4, described)
            _altered(peer, BROKER, broker, {name: value}, operation=DELETE)
            _wait_until(peer, broker, name, is_set=False)


def _wait_until(peer: Peer, broker: str, name: str, *, is_set: bool) -> None:
    source = 2 if broker else 3

    def is_so() -> bool:
        sources = {int(each["config_source"]) for each in _described(peer, BROKER, broker, [name])}
        return (source in sources) == is_set

    until(is_so, what=f"{name} of broker {broker!r}")


def _entity_values(peer: Peer, kind: int, entity: str, names: list[str], value: str) -> None:
    taken = {}
    for name in names:
        code = _altered(peer, kind, entity, {name: value}, only=True)
        peer.note(f"{kind}: {name}={value!r}", "incremental_alter_configs", 1, code)
        if not code:
            taken[name] = value
    code = _altered(peer, kind, entity, taken)
    while code and taken:  # some do not go together
        taken.popitem()
        code = _altered(peer, kind, entity, taken)
    peer.note(f"{kind}: together, {value!r}", "incremental_alter_configs", 1, sorted(taken))

    def is_applied() -> bool:
        sources = [int(each["config_source"]) for each in _described(peer, kind, entity, names)]
        return sources.count(SOURCES[kind]) == len(taken)

    until(is_applied, what="the settings")
    for each in sorted(_described(peer, kind, entity, names), key=lambda each: str(each["name"])):
        if each["name"] == "min.insync.replicas":  # Kafka's storage tool writes its default into each new cluster
            continue
        peer.note(f"{kind}: {each['name']}={value!r}, described", "describe_configs", 4, each)


def _described(peer: Peer, kind: int, entity: str, names: list[str]) -> list[dict[str, Any]]:
    asked = {"resource_type": kind, "resource_name": entity, "configuration_keys": names}
    found: list[dict[str, Any]] = peer.quietly(
        "describe_configs", 4, resources=[asked], include_synonyms=True, include_documentation=False
    )["results"][0]["configs"]
    return found


def _altered(
    peer: Peer, kind: int, entity: str, settings: dict[str, str], *, only: bool = False, operation: int = SET
) -> int:
    if not settings:
        return 0
    configs = [{"name": name, "config_operation": operation, "value": value} for name, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": entity, "configs": configs}
    answer = peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=only)
    code: int = answer["responses"][0]["error_code"]
    return code
