"""Kafka's znodes: where each thing lies and how its value is written. Nothing else knows a path or a JSON key.

Values are byte for byte what Kafka 3.x (the last with ZooKeeper) writes, so that its tools read our tree and we read
theirs. Source: kafka.zk.ZkData (Kafka 3.6). Unknown keys are passed by; a value that is
no such JSON raises `MalformedNode`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ottla.core.ids import NO_TOPIC_ID, id_text, parse_id

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
TOPICS_KIND, BROKERS_KIND, GROUPS_KIND, CLIENT_METRICS_KIND = "topics", "brokers", "groups", "client-metrics"
"""Directories under /config. The last two came to Kafka after ZooKeeper had gone; here they lie beside the others."""
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
KAFKA_IMPORT = "/ottla_adopted"
"""Ottla's own: what was imported from the Kafka whose directory this was."""
LOG_DIRS = "/ottla_log_dirs"
"""Ottla's own parent: below it, for each broker, the log directories that it has ever used."""

_QUOTED_KINDS = (GROUPS_KIND, CLIENT_METRICS_KIND)

DEFAULT_ENTITY = "<default>"
"""The name under /config/brokers (and others) that speaks for every entity."""

ROOTS = (
    "/cluster", "/brokers", BROKER_IDS, TOPICS, "/brokers/seqid", "/config", TOPIC_CONFIGS, "/config/brokers",
    "/config/clients", "/config/users", "/config/ips", "/config/changes", "/config/groups", "/config/client-metrics",
    "/admin", "/admin/delete_topics", "/consumers", "/isr_change_notification", "/log_dir_event_notification",
    PRODUCER_ID_BLOCK, LOG_DIRS,
)  # fmt: skip
"""Made once, parents first, by the first broker of a cluster."""

PRODUCER_IDS_PER_BLOCK = 1000


class MalformedNode(Exception):
    """A node's value is not what Kafka writes there."""

    def __init__(self, path: str, why: object) -> None:
        super().__init__(f"{path}: {why}")


def broker_path(node_id: int) -> str:
    """Where a live broker stands."""
    return f"{BROKER_IDS}/{node_id}"


def topic_path(topic: str) -> str:
    """Where a topic's assignment lies."""
    return f"{TOPICS}/{topic}"


def partition_path(topic: str, partition: int) -> str:
    """The parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    """Where a partition's leader and in-sync replicas lie."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """Where a topic's own settings lie."""
    return f"{TOPIC_CONFIGS}/{topic}"


def config_path(kind: str, entity: str) -> str:
    """Where the settings of an entity lie. Names that may hold anything are quoted as Kafka quotes them.

    >>> config_path("groups", "a/b"), config_path("brokers", "<default>")
    ('/config/groups/a%2Fb', '/config/brokers/<default>')
    """
    return f"/config/{kind}/{quote(entity, safe='') if kind in _QUOTED_KINDS else entity}"


def parse_config_path(path: str) -> tuple[str, str] | None:
    """The reverse: the kind and the name of an entity, or None if the path is no entity's.

    >>> parse_config_path("/config/groups/a%2Fb"), parse_config_path("/config/groups")
    (('groups', 'a/b'), None)
    """
    match path.split("/"):
        case ["", "config", kind, entity]:
            return kind, unquote(entity) if kind in _QUOTED_KINDS else entity
        case _:
            return None


# ---- Values ------------------------------------------------------------------------------------------------------


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(path: str, value: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise MalformedNode(path, error) from error
    if not isinstance(parsed, dict):
        raise MalformedNode(path, "not a JSON object")
    return parsed


class Endpoint(NamedTuple):
    """Where clients reach one listener of a broker."""

    host: str
    port: int


class BrokerRegistration(NamedTuple):
    """What a live broker says of itself."""

    node_id: int
    endpoints: dict[str, Endpoint]  # by listener name, in the order of `advertised.listeners`
    protocols: dict[str, str]  # listener name -> PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    rack: str | None = None
    started_ms: int = 0


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Version 5. `host` and `port` are for readers older than listeners: the first PLAINTEXT one, else null and -1."""
    plain = next((e for name, e in broker.endpoints.items() if broker.protocols[name] == "PLAINTEXT"), None)
    value: dict[str, Any] = {
        "version": 5,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "jmx_port": -1,
        "timestamp": str(broker.started_ms),
        "endpoints": [f"{name}://{_bracketed(e.host)}:{e.port}" for name, e in broker.endpoints.items()],
        "listener_security_protocol_map": broker.protocols,
        "features": {},
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    return _text(value)


def decode_broker(node_id: int, value: bytes) -> BrokerRegistration:
    """Versions 4 and 5."""
    path = broker_path(node_id)
    parsed = _parse(path, value)
    try:
        protocols = dict(parsed["listener_security_protocol_map"])
        endpoints = {}
        for text in parsed["endpoints"]:
            name, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            endpoints[name] = Endpoint(host.strip("[]"), int(port))
        return BrokerRegistration(node_id, endpoints, protocols, parsed.get("rack"), int(parsed.get("timestamp", 0)))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedNode(path, repr(error)) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Assignment(NamedTuple):
    """A topic's id and which brokers hold each partition, the preferred leader first."""

    topic_id: uuid.UUID
    replicas: dict[int, tuple[int, ...]]


def encode_assignment(assignment: Assignment) -> bytes:
    """Version 3."""
    partitions = {str(index): list(replicas) for index, replicas in sorted(assignment.replicas.items())}
    return _text(
        {
            "partitions": partitions,
            "topic_id": id_text(assignment.topic_id),
            "adding_replicas": {},
            "removing_replicas": {},
            "version": 3,
        }
    )


def decode_assignment(topic: str, value: bytes) -> Assignment:
    """Versions 1 to 3; the first two have no topic id."""
    parsed = _parse(topic_path(topic), value)
    try:
        replicas = {int(index): tuple(map(int, ids)) for index, ids in parsed["partitions"].items()}
        topic_id = parse_id(parsed["topic_id"]) if "topic_id" in parsed else NO_TOPIC_ID
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedNode(topic_path(topic), repr(error)) from error
    return Assignment(topic_id, dict(sorted(replicas.items())))


class PartitionState(NamedTuple):
    """Who leads a partition and who is in sync; the node's version is the partition epoch."""

    leader: int  # NO_LEADER if there is none
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int


def encode_state(state: PartitionState) -> bytes:
    """Version 1."""
    return _text(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        }
    )


def decode_state(topic: str, partition: int, value: bytes) -> PartitionState:
    """Version 1."""
    path = state_path(topic, partition)
    parsed = _parse(path, value)
    try:
        return PartitionState(
            int(parsed["leader"]),
            int(parsed["leader_epoch"]),
            tuple(map(int, parsed["isr"])),
            int(parsed["controller_epoch"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedNode(path, repr(error)) from error


def encode_config(config: Mapping[str, str]) -> bytes:
    """Version 1, keys sorted so that equal settings are equal bytes."""
    return _text({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(path: str, value: bytes) -> dict[str, str]:
    """Version 1. An empty value is no settings, as in Kafka."""
    config = _parse(path, value).get("config") if value else {}
    if not isinstance(config, dict):
        raise MalformedNode(path, "`config` is missing")
    return {str(key): str(text) for key, text in config.items()}


def encode_cluster_id(cluster_id: str) -> bytes:
    """The version is a string here, as Kafka has it."""
    return _text({"version": "1", "id": cluster_id})


def decode_cluster_id(value: bytes) -> str:
    """The id's text."""
    found = _parse(CLUSTER_ID, value).get("id")
    if not isinstance(found, str):
        raise MalformedNode(CLUSTER_ID, "`id` is missing")
    return found


def encode_controller(node_id: int, now_ms: int) -> bytes:
    """Version 1, read by every Kafka with ZooKeeper."""
    return _text({"version": 1, "brokerid": node_id, "timestamp": str(now_ms)})


def decode_controller(value: bytes) -> int:
    """The controller's node id."""
    found = _parse(CONTROLLER, value).get("brokerid")
    if not isinstance(found, int):
        raise MalformedNode(CONTROLLER, "`brokerid` is missing")
    return found


def encode_epoch(epoch: int) -> bytes:
    """Plain text."""
    return str(epoch).encode()


def decode_epoch(value: bytes) -> int:
    """Plain text."""
    try:
        return int(value)
    except ValueError as error:
        raise MalformedNode(CONTROLLER_EPOCH, error) from error


class ProducerIdBlock(NamedTuple):
    """Producer ids one broker may hand out; both ends inclusive."""

    broker: int
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """The bounds are strings, as Kafka has them."""
    return _text({"version": 1, "broker": block.broker, "block_start": str(block.first), "block_end": str(block.last)})


def decode_producer_id_block(value: bytes) -> ProducerIdBlock | None:
    """None where no block was ever taken (an empty node)."""
    if not value:
        return None
    parsed = _parse(PRODUCER_ID_BLOCK, value)
    try:
        return ProducerIdBlock(int(parsed["broker"]), int(parsed["block_start"]), int(parsed["block_end"]))
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedNode(PRODUCER_ID_BLOCK, repr(error)) from error


class KafkaImport(NamedTuple):
    """Records what was imported with a directory of Apache Kafka."""

    metadata_log_end: tuple[str, int] | None  # the last file of Kafka's metadata log and its size
    pinned: tuple[str, ...]  # topics that got retention.ms=-1, because their retention was unknown


def encode_kafka_import(done: KafkaImport) -> bytes:
    """Version 1."""
    return _text({"version": 1, "trace": done.metadata_log_end, "pinned": done.pinned})


def decode_kafka_import(value: bytes) -> KafkaImport:
    """Version 1."""
    parsed = _parse(KAFKA_IMPORT, value)
    try:
        end = parsed["trace"]
        return KafkaImport(None if end is None else (str(end[0]), int(end[1])), tuple(map(str, parsed["pinned"])))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise MalformedNode(KAFKA_IMPORT, repr(error)) from error


def log_dirs_path(node_id: int) -> str:
    """Where a broker's log directories are listed."""
    return f"{LOG_DIRS}/{node_id}"


def encode_log_dirs(directories: Mapping[str, str]) -> bytes:
    """Version 1: a directory's id (KIP-858) and where it was last."""
    return _text({"version": 1, "directories": dict(directories)})


def decode_log_dirs(node_id: int, value: bytes) -> dict[str, str]:
    """Version 1."""
    path = log_dirs_path(node_id)
    parsed = _parse(path, value)
    try:
        return {str(key): str(where) for key, where in parsed["directories"].items()}
    except (KeyError, AttributeError) as error:
        raise MalformedNode(path, repr(error)) from error


def parse_topic_path(path: str) -> str | None:
    """The topic a path below /brokers/topics or /config/topics belongs to.

    >>> parse_topic_path("/brokers/topics/web/partitions/0/state"), parse_topic_path("/config/topics/web")
    ('web', 'web')
    """
    for root in (TOPICS, TOPIC_CONFIGS):
        if path.startswith(root + "/"):
            return path[len(root) + 1 :].split("/", 1)[0]
    return None
