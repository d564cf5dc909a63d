"""Defines Kafka's znodes: the path and the encoding of each value. ACLs and tokens have modules of their own.

No other module has a path or a JSON key.

Values are byte for byte those of Kafka 3.x (the last with ZooKeeper), so that its tools can read Ottla's tree and Ottla
can read a tree of Kafka. Source: kafka.zk.ZkData (Kafka 3.6). What only Ottla knows (eligible leader replicas, a broker
that shuts down) is in extra keys, which Kafka ignores and which are absent while they are empty. Unknown keys are
ignored, and those of topics and partitions are written again with the rest; a value that is not such JSON raises
`MalformedNode`.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text, parse_id

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
TOPICS_KIND, BROKERS_KIND, GROUPS_KIND, CLIENT_METRICS_KIND = "topics", "brokers", "groups", "client-metrics"
"""Directories under /config. Kafka introduced the last two after it had removed ZooKeeper."""
USERS_KIND, CLIENTS_KIND, IPS_KIND = QUOTA_KINDS = ("users", "clients", "ips")
"""Directories under /config for quotas, and (users) credentials. Names below them are those of the nodes: `sanitized`,
and `USER/clients/CLIENT` for a client id of one user."""
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
KAFKA_IMPORT = "/ottla_adopted"
"""A node of Ottla's own: the summary of the import of a Kafka directory."""
LOG_DIRS = "/ottla_log_dirs"
"""A node of Ottla's own: its children list the log directories that each broker has ever used."""
DELETED_TOPICS = "/ottla_deleted_topics"
"""A node of Ottla's own: its children are the ids of deleted topics with logs that may still be on a disk."""
TOPIC_DELETIONS = "/admin/delete_topics"
"""Its children are the names of topics whose deletion has begun: for all brokers they are deleted."""
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ADMIN_REQUESTS = (REASSIGN_PARTITIONS, PREFERRED_REPLICA_ELECTION)
"""Requests of Kafka's older tools; the controller deletes them."""
REPLICA_REPORTS = "/ottla_replicas"
"""A node of Ottla's own: its children report the state in which each broker found its replicas at its start."""

HANDLED_BROKERS = "/ottla_handled_brokers"
"""A node of Ottla's own: the epochs of the brokers on whose start the controller has acted."""

LITERAL_ACLS, EXTENDED_ACLS, QUOTED_ACLS = "/kafka-acl", "/kafka-acl-extended", "/ottla_acls"
"""Below these are the ACLs. The last is a node of Ottla's own, for resources whose name cannot be that of a znode."""
TOKENS = "/delegation_token/tokens"

_QUOTED_KINDS = (GROUPS_KIND, CLIENT_METRICS_KIND)

DEFAULT_ENTITY = "<default>"
"""The name under /config/brokers (and others) whose settings apply to every entity."""

ROOTS = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    "/brokers/seqid",
    "/config",
    TOPIC_CONFIGS,
    "/config/brokers",
    "/config/clients",
    "/config/users",
    "/config/ips",
    "/config/changes",
    "/config/groups",
    "/config/client-metrics",
    "/admin",
    TOPIC_DELETIONS,
    "/consumers",
    "/isr_change_notification",
    "/log_dir_event_notification",
    PRODUCER_ID_BLOCK,
    LOG_DIRS,
    DELETED_TOPICS,
    REPLICA_REPORTS,
    "/delegation_token",
    TOKENS,
)
"""Created once, parents first, by the first broker of a cluster."""

PRODUCER_IDS_PER_BLOCK = 1000


class MalformedNode(Exception):
    """A node's value is not what Kafka writes there."""

    def __init__(self, path: str, why: object) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


def broker_path(node_id: int) -> str:
    """Return the path of a live broker's registration."""
    return f"{BROKER_IDS}/{node_id}"


def topic_path(topic: str) -> str:
    """Return the path of a topic's assignment."""
    return f"{TOPICS}/{topic}"


def partition_path(topic: str, partition: int) -> str:
    """Return the parent path of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def is_partitions_path(path: str) -> bool:
    """Return whether it is the parent of a topic's partitions.

    >>> is_partitions_path("/brokers/topics/web/partitions"), is_partitions_path("/brokers/topics/web/partitions/0")
    (True, False)
    """
    return path.startswith(f"{TOPICS}/") and path.count("/") == 4 and path.endswith("/partitions")


def state_path(topic: str, partition: int) -> str:
    """Return the path of a partition's leader and in-sync replicas."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """Return the path of a topic's own settings."""
    return f"{TOPIC_CONFIGS}/{topic}"


def sanitized(name: str) -> str:
    """Return the name of a user or a client id as Kafka writes it in a path (Sanitizer).

    >>> sanitized("CN=a b,O=*"), sanitized("<default>")
    ('CN%3Da%20b%2CO%3D%2A', '%3Cdefault%3E')
    """
    return quote(name, safe="").replace("~", "%7E")


def desanitized(name: str) -> str:
    """Return the name that `sanitized` has changed."""
    return unquote(name)


def config_path(kind: str, entity: str) -> str:
    """Return the path of the settings of an entity. Names without restrictions are quoted as in Kafka.

    >>> config_path("groups", "a/b"), config_path("brokers", "<default>")
    ('/config/groups/a%2Fb', '/config/brokers/<default>')
    """
    return f"/config/{kind}/{quote(entity, safe='') if kind in _QUOTED_KINDS else entity}"


def config_parents(kind: str, entity: str) -> list[str]:
    """Return the entities whose nodes are above that of an entity, without settings of their own or with.

    >>> config_parents("users", "a/clients/b"), config_parents("clients", "b")
    (['a', 'a/clients'], [])
    """
    names = entity.split("/") if kind == USERS_KIND else []
    return ["/".join(names[:end]) for end in range(1, len(names))]


def is_acl_path(path: str) -> bool:
    """Return whether it is below a directory of ACLs."""
    return path.startswith((LITERAL_ACLS + "/", EXTENDED_ACLS + "/", QUOTED_ACLS + "/"))


def parse_config_path(path: str) -> tuple[str, str] | None:
    """Return the kind and the name of the entity of a settings path, or None for any other path.

    >>> parse_config_path("/config/groups/a%2Fb"), parse_config_path("/config/groups")
    (('groups', 'a/b'), None)
    >>> parse_config_path("/config/users/a/clients/b")
    ('users', 'a/clients/b')
    """
    match path.split("/"):
        case ["", "config", kind, entity]:
            return kind, unquote(entity) if kind in _QUOTED_KINDS else entity
        case ["", "config", "users", user, *rest] if rest[:1] == ["clients"] and len(rest) <= 2:
            return USERS_KIND, "/".join([user, *rest])  # a client id of a user, or the parent of all of them
        case _:
            return None


# ---- Values


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def _text(value: Mapping[str, Any], unknown_keys: str = "") -> bytes:
    if unknown_keys:
        value = {**json.loads(unknown_keys), **value}
    return _ENCODER.encode(value).encode()


def _unknown_keys(parsed: Mapping[str, Any], known: frozenset[str]) -> str:
    """Return the other keys as JSON text, which compares and hashes; empty without any."""
    if parsed.keys() <= known:
        return ""
    return json.dumps({key: value for key, value in parsed.items() if key not in known}, separators=(",", ":"))


def _parse(path: str, value: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(value.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedNode(path, error) from error
    if not isinstance(parsed, dict):
        raise MalformedNode(path, "not a JSON object")
    return parsed


_ID_MAX = 2**31 - 1


def _id(value: Any) -> int:
    """Return a node id or an epoch. Raises ValueError if it does not fit where the wire has it."""
    if type(value) is not int or not 0 <= value <= _ID_MAX:
        raise ValueError(f"{value!r} is not a number from 0 to {_ID_MAX}")
    return value


def _id_or_none(value: Any) -> int:
    """Return a node id or an epoch, or -1 for none. Raises ValueError."""
    return -1 if value == -1 else _id(value)


def _ids(values: Any) -> tuple[int, ...]:
    """Return different node ids. Raises ValueError."""
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list of node ids")  # noqa: TRY004 - one error for all
    found = tuple(map(_id, values))
    if len(set(found)) < len(found):
        raise ValueError(f"{values!r} has a node id twice")
    return _shared(found)


@lru_cache(maxsize=4096)
def _shared(node_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same tuple for the same ids: thousands of partitions have few different sets of replicas."""
    return node_ids


class Endpoint(NamedTuple):
    """The address of one listener of a broker, as clients use it."""

    host: str
    port: int


class BrokerRegistration(NamedTuple):
    """The registration of a live broker."""

    node_id: int
    endpoints: dict[str, Endpoint]  # by listener name, in the order of `advertised.listeners`
    protocols: dict[str, str]  # listener name -> PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    rack: str | None = None
    started_ms: int = 0
    is_shutting_down: bool = False  # its leaders move to other brokers before it stops
    is_cordoned: bool = False  # all its log directories are: it gets no new replicas


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Encode version 5. `host` and `port` (for old readers): of the first PLAINTEXT listener, else null and -1."""
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
    if broker.is_shutting_down:
        value["shutting_down"] = True
    if broker.is_cordoned:
        value["cordoned"] = True
    return _text(value)


def decode_broker(node_id: int, value: bytes) -> BrokerRegistration:
    """Decode versions 4 and 5."""
    path = broker_path(node_id)
    parsed = _parse(path, value)
    try:
        protocols = {name: str(protocol) for name, protocol in parsed["listener_security_protocol_map"].items()}
        endpoints = {}
        for text in parsed["endpoints"]:
            name, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            endpoints[name] = Endpoint(host.strip("[]"), int(port))
        if unknown := endpoints.keys() - protocols.keys():
            raise ValueError(f"no protocol of {', '.join(sorted(unknown))}")
        rack = parsed.get("rack")
        return BrokerRegistration(
            node_id,
            endpoints,
            protocols,
            None if rack is None else str(rack),
            int(parsed.get("timestamp", 0)),
            parsed.get("shutting_down") is True,
            parsed.get("cordoned") is True,
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedNode(path, repr(error)) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_NO_REPLICAS: Mapping[int, tuple[int, ...]] = MappingProxyType({})
_ASSIGNMENT_KEYS = frozenset({"partitions", "topic_id", "adding_replicas", "removing_replicas", "version"})


class Assignment(NamedTuple):
    """The id of a topic, and the replicas of each partition, the preferred leader first."""

    topic_id: uuid.UUID
    replicas: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = _NO_REPLICAS  # of partitions in reassignment only; part of `replicas`
    removing: Mapping[int, tuple[int, ...]] = _NO_REPLICAS  # also part of `replicas`
    unknown_keys: str = ""  # as JSON: what another version wrote and this one keeps


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode version 3."""
    value = {
        "partitions": _replica_lists(assignment.replicas),
        "topic_id": id_text(assignment.topic_id),
        "adding_replicas": _replica_lists(assignment.adding),
        "removing_replicas": _replica_lists(assignment.removing),
        "version": 3,
    }
    return _text(value, assignment.unknown_keys)


def _replica_lists(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(index): list(ids) for index, ids in sorted(replicas.items())}


def decode_assignment(topic: str, value: bytes) -> Assignment:
    """Decode versions 1 to 3; the first has no topic id and no reassignment."""
    parsed = _parse(topic_path(topic), value)
    try:
        replicas = _parse_replicas(parsed["partitions"])
        topic_id = parse_id(str(parsed["topic_id"])) if "topic_id" in parsed else NO_TOPIC_ID
        adding = _parse_replicas(parsed.get("adding_replicas") or {})
        removing = _parse_replicas(parsed.get("removing_replicas") or {})
        if not all(replicas.values()):
            raise ValueError("a partition has no replicas")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedNode(topic_path(topic), repr(error)) from error
    return Assignment(topic_id, replicas, adding, removing, _unknown_keys(parsed, _ASSIGNMENT_KEYS))


def _parse_replicas(parsed: Mapping[str, list[int]]) -> dict[int, tuple[int, ...]]:
    return dict(sorted((int(index), _ids(ids)) for index, ids in parsed.items()))


_STATE_KEYS = frozenset(
    {"controller_epoch", "leader", "version", "leader_epoch", "isr", "leader_recovery_state"}
    | {"elr", "last_known_elr", "last_unclean_epoch"}
)


class PartitionState(NamedTuple):
    """The leader and the in-sync replicas of a partition; the node's version is the partition epoch."""

    leader: int  # NO_LEADER if there is none
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    is_recovering: bool = False  # the leader was elected uncleanly and has not confirmed it yet
    elr: tuple[int, ...] = ()  # eligible leader replicas: outside the ISR with every record below the high watermark
    last_known_elr: tuple[int, ...] = ()
    last_unclean_epoch: int = -1  # the leader epoch of the last unclean election; -1 if there was none
    unknown_keys: str = ""  # as JSON: what another version wrote and this one keeps


def encode_state(state: PartitionState) -> bytes:
    """Encode version 1. The keys that Kafka does not write are absent while they are empty."""
    value: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.is_recovering:
        value["leader_recovery_state"] = 1
    if state.elr:
        value["elr"] = list(state.elr)
    if state.last_known_elr:
        value["last_known_elr"] = list(state.last_known_elr)
    if state.last_unclean_epoch >= 0:
        value["last_unclean_epoch"] = state.last_unclean_epoch
    return _text(value, state.unknown_keys)


def decode_state(topic: str, partition: int, value: bytes) -> PartitionState:
    """Decode version 1."""
    path = state_path(topic, partition)
    parsed = _parse(path, value)
    try:
        return PartitionState(
            _id_or_none(parsed["leader"]),
            _id(parsed["leader_epoch"]),
            _ids(parsed["isr"]),
            int(parsed["controller_epoch"]),
            int(parsed.get("leader_recovery_state", 0)) == 1,
            _ids(parsed.get("elr", [])),
            _ids(parsed.get("last_known_elr", [])),
            _id_or_none(parsed.get("last_unclean_epoch", -1)),
            _unknown_keys(parsed, _STATE_KEYS),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise MalformedNode(path, repr(error)) from error


def encode_config(config: Mapping[str, str]) -> bytes:
    """Encode version 1; sorted keys make equal settings equal bytes."""
    return _text({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(path: str, value: bytes) -> dict[str, str]:
    """Decode version 1. An empty value means no settings, as in Kafka."""
    config = _parse(path, value).get("config") if value else {}
    if not isinstance(config, dict):
        raise MalformedNode(path, "`config` is missing")
    return {str(key): str(text) for key, text in config.items()}


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode version 1, here a string, as in Kafka."""
    return _text({"version": "1", "id": cluster_id})


def decode_cluster_id(value: bytes) -> str:
    """Decode the id."""
    found = _parse(CLUSTER_ID, value).get("id")
    if not isinstance(found, str):
        raise MalformedNode(CLUSTER_ID, "`id` is missing")
    return found


def encode_controller(node_id: int, now_ms: int) -> bytes:
    """Encode version 1, which every Kafka with ZooKeeper can read."""
    return _text({"version": 1, "brokerid": node_id, "timestamp": str(now_ms)})


def decode_controller(value: bytes) -> int:
    """Decode the controller's node id."""
    try:
        return _id(_parse(CONTROLLER, value).get("brokerid"))
    except ValueError as error:
        raise MalformedNode(CONTROLLER, f"`brokerid`: {error}") from error


def encode_epoch(epoch: int) -> bytes:
    """Encode an epoch as plain text."""
    return str(epoch).encode()


def decode_epoch(value: bytes) -> int:
    """Decode an epoch as plain text."""
    try:
        return int(value)
    except ValueError as error:
        raise MalformedNode(CONTROLLER_EPOCH, error) from error


class ProducerIdBlock(NamedTuple):
    """The producer ids that one broker may allocate; both ends inclusive."""

    broker: int
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """Encode version 1; the bounds are strings, as in Kafka."""
    return _text({"version": 1, "broker": block.broker, "block_start": str(block.first), "block_end": str(block.last)})


def decode_producer_id_block(value: bytes) -> ProducerIdBlock | None:
    """Decode a block; None if none was ever allocated (an empty node)."""
    if not value:
        return None
    parsed = _parse(PRODUCER_ID_BLOCK, value)
    try:
        return ProducerIdBlock(int(parsed["broker"]), int(parsed["block_start"]), int(parsed["block_end"]))
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise MalformedNode(PRODUCER_ID_BLOCK, repr(error)) from error


class KafkaImport(NamedTuple):
    """Records what was imported with a directory of Apache Kafka."""

    metadata_log_end: tuple[str, int] | None  # the last file of Kafka's metadata log and its size
    pinned: tuple[str, ...]  # topics that got retention.ms=-1, because their retention was unknown
    has_acls: bool = False  # the store got the ACLs too; an earlier version of Ottla left them in Kafka's metadata log
    has_tokens: bool = False  # and delegation tokens likewise


def encode_kafka_import(done: KafkaImport) -> bytes:
    """Encode version 1."""
    return _text(
        {
            "version": 1,
            "trace": done.metadata_log_end,
            "pinned": done.pinned,
            "acls": done.has_acls,
            "tokens": done.has_tokens,
        }
    )


def decode_kafka_import(value: bytes) -> KafkaImport:
    """Decode version 1."""
    parsed = _parse(KAFKA_IMPORT, value)
    try:
        end = parsed["trace"]
        return KafkaImport(
            None if end is None else (str(end[0]), int(end[1])),
            tuple(map(str, parsed["pinned"])),
            parsed.get("acls") is True,
            parsed.get("tokens") is True,
        )
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise MalformedNode(KAFKA_IMPORT, repr(error)) from error


def log_dirs_path(node_id: int) -> str:
    """Return the path of the list of a broker's log directories."""
    return f"{LOG_DIRS}/{node_id}"


def encode_log_dirs(directories: Mapping[str, str]) -> bytes:
    """Encode version 1: the last path of each directory by its id (KIP-858)."""
    return _text({"version": 1, "directories": dict(directories)})


def decode_log_dirs(node_id: int, value: bytes) -> dict[str, str]:
    """Decode version 1."""
    path = log_dirs_path(node_id)
    parsed = _parse(path, value)
    try:
        return {str(key): str(where) for key, where in parsed["directories"].items()}
    except (KeyError, AttributeError) as error:
        raise MalformedNode(path, repr(error)) from error


class Impairment(StrEnum):
    """Lists why a replica that has every committed offset should not lead while another one can."""

    CORRUPT = "corrupt"
    """Records are corrupt or missing, and are being fetched again from the leader."""
    FULL = "full"
    """Its log directory takes no records."""


_NOT_IMPAIRED: Mapping[Impairment, frozenset[TopicPartition]] = MappingProxyType({})


class ReplicaReport(NamedTuple):
    """The state of a broker's replicas; first written in the commit that registers it.

    An impaired replica leaves the ISR, and leads no longer, while another member of the ISR is not impaired. Among
    impaired ones alone nothing changes: one of them leads, and they may be in the ISR. A suspect one, which may have
    lost committed records from its end, never leads nor joins the ISR.
    """

    is_clean: bool  # the previous run stopped cleanly: every record that it had acknowledged is there
    suspects: frozenset[TopicPartition] = frozenset()  # shorter than the checkpointed high watermark, or missing
    offline: frozenset[TopicPartition] = frozenset()  # in a log directory that failed or is missing
    impaired: Mapping[Impairment, frozenset[TopicPartition]] = _NOT_IMPAIRED

    def impairments_of(self, partition: TopicPartition) -> list[Impairment]:
        """Return why a replica is impaired; nothing if it is not."""
        return [why for why, partitions in self.impaired.items() if partition in partitions]


def replica_report_path(node_id: int) -> str:
    """Return the path of a broker's report on its replicas."""
    return f"{REPLICA_REPORTS}/{node_id}"


def encode_replica_report(report: ReplicaReport) -> bytes:
    """Encode version 1."""
    impaired = {why.value: _by_topic(partitions) for why, partitions in sorted(report.impaired.items()) if partitions}
    return _text(
        {
            "version": 1,
            "is_clean": report.is_clean,
            "suspects": _by_topic(report.suspects),
            "offline": _by_topic(report.offline),
            **({"impaired": impaired} if impaired else {}),
        }
    )


def decode_replica_report(node_id: int, value: bytes) -> ReplicaReport:
    """Decode version 1."""
    path = replica_report_path(node_id)
    parsed = _parse(path, value)
    try:
        impaired = {  # a kind that only newer brokers know is passed over
            Impairment(why): _parse_by_topic(partitions)
            for why, partitions in parsed.get("impaired", {}).items()
            if why in set(Impairment)
        }
        return ReplicaReport(
            bool(parsed["is_clean"]),
            _parse_by_topic(parsed["suspects"]),
            _parse_by_topic(parsed["offline"]),
            impaired or _NOT_IMPAIRED,
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedNode(path, repr(error)) from error


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


def _parse_by_topic(parsed: Mapping[str, list[int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(str(topic), int(index)) for topic, indexes in parsed.items() for index in indexes)


def encode_handled_brokers(epochs: Mapping[int, int]) -> bytes:
    """Encode version 1: broker epochs by node id."""
    return _text({"version": 1, "epochs": {str(node): epoch for node, epoch in sorted(epochs.items())}})


def decode_handled_brokers(value: bytes) -> dict[int, int]:
    """Decode version 1."""
    parsed = _parse(HANDLED_BROKERS, value)
    try:
        return {int(node): int(epoch) for node, epoch in parsed["epochs"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedNode(HANDLED_BROKERS, repr(error)) from error


def topic_deletion_path(topic: str) -> str:
    """Return the path that says that the deletion of a topic has begun."""
    return f"{TOPIC_DELETIONS}/{topic}"


def decode_reassign_partitions(value: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Decode the replicas that an older tool requests for partitions."""
    parsed = _parse(REASSIGN_PARTITIONS, value)
    try:
        return {
            TopicPartition(str(each["topic"]), int(each["partition"])): _ids(each["replicas"])
            for each in parsed["partitions"]
        }
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedNode(REASSIGN_PARTITIONS, repr(error)) from error


def decode_preferred_replica_election(value: bytes) -> list[TopicPartition]:
    """Decode the partitions for which an older tool requests the preferred leader."""
    parsed = _parse(PREFERRED_REPLICA_ELECTION, value)
    try:
        named = [TopicPartition(str(each["topic"]), int(each["partition"])) for each in parsed["partitions"]]
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedNode(PREFERRED_REPLICA_ELECTION, repr(error)) from error
    return list(dict.fromkeys(named))


def deleted_topic_path(topic_id: uuid.UUID) -> str:
    """Return the path of the note that a deleted topic has until no log of it is left."""
    return f"{DELETED_TOPICS}/{id_text(topic_id)}"


class DeletedTopic(NamedTuple):
    """The name that a deleted topic had, and the brokers that may still have logs of it."""

    topic: str
    brokers: tuple[int, ...] = ()


def encode_deleted_topic(deleted: DeletedTopic) -> bytes:
    """Encode version 1."""
    return _text({"version": 1, "topic": deleted.topic, "brokers": list(deleted.brokers)})


def decode_deleted_topic(path: str, value: bytes) -> DeletedTopic:
    """Decode version 1; without brokers if a single broker wrote it."""
    parsed = _parse(path, value)
    try:
        return DeletedTopic(str(parsed["topic"]), _ids(parsed.get("brokers", [])))
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedNode(path, repr(error)) from error


def decode_deleted_topic_ids(names: Iterable[str]) -> frozenset[uuid.UUID]:
    """Decode the names of the children of `DELETED_TOPICS`; those that are no ids note nothing."""
    found = set()
    for name in names:
        with contextlib.suppress(ValueError):
            found.add(parse_id(name))
    return frozenset(found)


def parse_topic_path(path: str) -> str | None:
    """Return the topic of a path below /brokers/topics or /config/topics.

    >>> parse_topic_path("/brokers/topics/web/partitions/0/state"), parse_topic_path("/config/topics/web")
    ('web', 'web')
    """
    for root in (TOPICS, TOPIC_CONFIGS):
        if path.startswith(root + "/"):
            return path[len(root) + 1 :].split("/", 1)[0]
    return None
