"""What both brokers are asked about topics, settings, the cluster and the directories."""

from __future__ import annotations

from typing import Any

from tests.differential.peer import Peer
from tests.support.batches import batch, numbered
from tests.support.processes import until
from tests.support.wire_client import NO_ID, encode

PATIENCE: dict[str, Any] = {"timeout": 20_000}
UNKNOWN_ID = type(NO_ID)("11111111-2222-3333-4444-555555555555")
TOPIC, BROKER = 2, 4
DYNAMIC_BROKER = 2  # a source of a value
GIVEN = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}  # differ with port and place


def create_topics(peer: Peer) -> None:
    """Pitfall 43: defaults, names, counts, assignments, settings, validation alone."""
    for version in peer.each("create_topics"):
        base = f"{peer.stem}-c{version}"

        def create(label: str, *topics: dict[str, Any], only: bool = False, version: int = version) -> None:
            peer.ask(label, "create_topics", version, topics=topics, validate_only=only, **PATIENCE)

        ordinary = {"num_partitions": 2, "replication_factor": 1}
        create("validated only", {"name": base} | ordinary, only=True)
        create("made", {"name": base} | ordinary)
        create("made again", {"name": base} | ordinary)
        create("made again, validated only", {"name": base} | ordinary, only=True)
        create(
            "with its own settings",
            {"name": base + "-s", "configs": [{"name": "retention.ms", "value": "5000"}]} | ordinary,
        )
        for index, name in enumerate(("", ".", "..", "a/b", "x" * 250, "spaces in it", "ünicode")):
            create(f"wrong name {index}", {"name": name} | ordinary)
        create("no partitions", {"name": base + "-x", "num_partitions": 0, "replication_factor": 1})
        create("minus two partitions", {"name": base + "-x", "num_partitions": -2, "replication_factor": 1})
        create("no replicas", {"name": base + "-x", "num_partitions": 1, "replication_factor": 0})
        create("more replicas than brokers", {"name": base + "-x", "num_partitions": 1, "replication_factor": 3})
        if version >= 4:
            create("defaults", {"name": base + "-d", "num_partitions": -1, "replication_factor": -1})
        create("twice in one request", {"name": base + "-t"} | ordinary, {"name": base + "-t"} | ordinary)
        create("a good and a bad one", {"name": base + "-g"} | ordinary, {"name": "a/b"} | ordinary)
        create("a name that collides", {"name": base.replace("-", "_") + ".a"} | ordinary)
        create("the other of the collision", {"name": base.replace("-", "_") + "_a"} | ordinary)
        by_hand = {"num_partitions": -1, "replication_factor": -1}
        for label, assignments in (
            ("assigned by hand", [(0, [1]), (1, [1])]), ("assigned to a broker that is not", [(0, [9])]),
            ("assigned twice to one", [(0, [1, 1])]), ("assigned with a gap", [(0, [1]), (2, [1])]), ("assigned to no broker", [(0, [])]),
        ):  # fmt: skip
            plan = [{"partition_index": number, "broker_ids": brokers} for number, brokers in assignments]
            create(label, {"name": f"{base}-{label.replace(' ', '-')}", "assignments": plan} | by_hand)
        create(
            "assigned and counted",
            {"name": base + "-x", "assignments": [{"partition_index": 0, "broker_ids": [1]}]} | ordinary,
        )
        for name, value in (
            ("retention.ms", "soon"),
            ("no.such.setting", "1"),
            ("cleanup.policy", "shred"),
            ("max.message.bytes", "-1"),
            ("retention.ms", None),
        ):
            create(f"{name}={value}", {"name": base + "-x", "configs": [{"name": name, "value": value}]} | ordinary)
        create("nothing")


def delete_topics(peer: Peer) -> None:
    """By name, by id, unknown, twice."""
    for version in peer.each("delete_topics"):
        one, two = (peer.topic(f"del{number}-{version}") for number in (1, 2))

        def delete(label: str, *topics: dict[str, Any], version: int = version) -> None:
            peer.ask(
                label,
                "delete_topics",
                version,
                topics=topics,
                topic_names=[each["name"] for each in topics],
                **PATIENCE,
            )

        delete("known", {"name": one})
        delete("again", {"name": one})
        delete("unknown", {"name": "never-made"})
        delete("nothing")
        if version >= 6:
            delete("unknown id", {"name": None, "topic_id": UNKNOWN_ID})
            delete("name and id", {"name": two, "topic_id": peer.ids[two]})
            delete("by id", {"name": None, "topic_id": peer.ids[two]})
        else:
            delete("twice in one request", {"name": two}, {"name": two})


def create_partitions(peer: Peer) -> None:
    """More, as many, fewer, unknown, by hand, validated only."""
    for version in peer.each("create_partitions"):
        name = peer.topic(f"cp-{version}", partitions=2)

        def grow(
            label: str,
            count: int,
            assignments: list[list[int]] | None = None,
            *,
            name: str = name,
            only: bool = False,
            version: int = version,
        ) -> None:
            plan = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
            peer.ask(
                label,
                "create_partitions",
                version,
                topics=[{"name": name, "count": count, "assignments": plan}],
                validate_only=only,
                **PATIENCE,
            )

        grow("validated only", 4, only=True)
        grow("as many", 2)
        grow("fewer", 1)
        grow("none", 0)
        grow("negative", -1)
        grow("more", 4)
        grow("by hand", 5, [[1]])
        grow("too few by hand", 8, [[1]])
        grow("to a broker that is not", 6, [[7]])
        grow("no such topic", 3, name=peer.stem + "-none")
        twice = {"name": name, "count": 9, "assignments": None}
        peer.ask("twice in one request", "create_partitions", version, topics=[twice, twice], **PATIENCE)
        peer.topic(f"cp-marker-{version}")  # changes are applied in order: this one shows that the others are
        said = peer.quietly("metadata", 9, topics=[{"name": name}])
        peer.note("partitions afterwards", "create_partitions", version, len(said["topics"][0]["partitions"]))


def describe_configs(peer: Peer) -> None:
    """Pitfall 44: everything with defaults, sources, synonyms; some by name; unknown resources."""
    name = peer.topic("dc", config={"retention.ms": "5000", "cleanup.policy": "compact,delete"})
    for version in peer.each("describe_configs"):

        def describe(
            label: str, kind: int, resource: str, keys: list[str] | None = None, *, version: int = version, **more: Any
        ) -> None:
            asked = {"resource_type": kind, "resource_name": resource, "configuration_keys": keys}
            peer.ask(label, "describe_configs", version, resources=[asked], **more)

        describe("all of a topic", TOPIC, name)
        describe("with synonyms", TOPIC, name, include_synonyms=True)
        describe("with documentation", TOPIC, name, ["retention.ms"], include_documentation=True)
        describe("by name", TOPIC, name, ["retention.ms", "segment.bytes", "no.such.setting"])
        describe("none by name", TOPIC, name, [])
        describe("no such topic", TOPIC, peer.stem + "-none")
        describe("a topic that cannot be", TOPIC, "a/b")
        describe("no such kind", 77, "x")
        describe("another broker", BROKER, "9")
        describe("a broker that is no number", BROKER, "one")
        keys = [
            "log.segment.bytes",
            "num.partitions",
            "log.retention.hours",
            "message.max.bytes",
            "min.insync.replicas",
        ]
        describe("the broker by name", BROKER, "1", keys, include_synonyms=True)
        describe("the defaults of all brokers", BROKER, "", keys)


def broker_configs(peer: Peer) -> None:
    """All of the broker's settings, each compared as a row of a table."""
    for version in peer.each("describe_configs"):
        asked = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
        answer = peer.quietly("describe_configs", version, resources=[asked])
        rows = {
            each["name"]: {key: each.get(key) for key in ("value", "read_only", "is_sensitive", "config_type")}
            for each in answer["results"][0]["configs"]
        }
        for name in GIVEN & rows.keys():
            rows[name]["value"] = "given on starting"
        peer.note("all of the broker", "describe_configs", version, rows)


def synonyms(peer: Peer) -> None:
    """A period that is set in milliseconds shows below it what other units and the default say, for broker and topic."""
    name = peer.topic("synonyms")
    given = {"log.roll.ms": "604800000", "log.retention.ms": "604800000", "log.flush.interval.ms": "9000000"}
    topic_keys = ["segment.ms", "retention.ms", "flush.ms"]

    def change(operation: int) -> None:
        configs = [{"name": key, "config_operation": operation, "value": value} for key, value in given.items()]
        for broker in ("", "1"):
            resource = {"resource_type": BROKER, "resource_name": broker, "configs": configs}
            said = peer.quietly("incremental_alter_configs", 1, resources=[resource])
            assert not said["responses"][0]["error_code"], said

    def is_set() -> bool:
        asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": topic_keys}
        found = peer.quietly("describe_configs", 1, resources=[asked])["results"][0]["configs"]
        return all(each["config_source"] == DYNAMIC_BROKER for each in found)

    change(0)
    until(is_set, what="the settings")
    for version in peer.each("describe_configs"):
        for kind, resource, keys in ((BROKER, "1", list(given)), (TOPIC, name, topic_keys)):
            asked = {"resource_type": kind, "resource_name": resource, "configuration_keys": keys}
            peer.ask(f"synonyms, {kind}", "describe_configs", version, resources=[asked], include_synonyms=True)
    change(1)
    until(lambda: not is_set(), what="the defaults")


def update_features(peer: Peer) -> None:
    """The level in use, others, unknown features, in each way to ask."""
    level = 2  # of transaction.version, in use on both sides
    for version in peer.each("update_features"):
        for label, feature, wanted, upgrade_type in (
            ("the level in use", "transaction.version", level, 1),
            ("the level in use, as a downgrade", "transaction.version", level, 2),
            ("a level to come", "transaction.version", 99, 1),
            ("a negative level", "transaction.version", -1, 1),
            ("a lower level, as an upgrade", "transaction.version", 1, 1),
            ("an unknown feature", "no.such.feature", 1, 1),
            ("no way to upgrade", "transaction.version", level, 0),
        ):
            update = {"feature": feature, "max_version_level": wanted, "upgrade_type": upgrade_type}
            update["allow_downgrade"] = upgrade_type > 1
            for validate_only in (False, True):
                answer = peer.quietly(
                    "update_features", version, feature_updates=[update], validate_only=validate_only, timeout=9000
                )
                kept = {"error_code": answer["error_code"], "results": answer.get("results")}
                peer.note(f"{label}, validated only: {validate_only}", "update_features", version, kept)
        peer.ask("nothing", "update_features", version, feature_updates=[], validate_only=False, timeout=9000)


def describe_quorum(peer: Peer) -> None:
    """Kafka has a quorum."""
    for version in peer.each("describe_quorum"):
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = peer.quietly("describe_quorum", version, topics=topics)
        peer.note("the quorum", "describe_quorum", version, {"error_code": answer["error_code"]})


def unregister_broker(peer: Peer) -> None:
    """A broker that is not known."""
    for version in peer.each("unregister_broker"):
        peer.ask("an unknown broker", "unregister_broker", version, broker_id=77)


def alter_configs(peer: Peer) -> None:
    """The old way: what is not named goes back to its default."""
    for version in peer.each("alter_configs"):
        name = peer.topic(f"ac-{version}", config={"retention.ms": "5000"})

        def alter(
            label: str,
            resource: str,
            entries: dict[str, str | None],
            *,
            kind: int = TOPIC,
            only: bool = False,
            name: str = name,
            version: int = version,
        ) -> None:
            configs = [{"name": key, "value": value} for key, value in entries.items()]
            peer.ask(
                label,
                "alter_configs",
                version,
                resources=[{"resource_type": kind, "resource_name": resource, "configs": configs}],
                validate_only=only,
            )
            show(peer, f"after {label}", "alter_configs", version, name)

        alter("validated only", name, {"segment.ms": "99999"}, only=True)
        alter("another setting", name, {"segment.ms": "99999"})
        alter("a wrong value", name, {"segment.ms": "soon"})
        alter("an unknown setting", name, {"no.such": "1"})
        alter("a null value", name, {"segment.ms": None})
        alter("no such topic", peer.stem + "-none", {"segment.ms": "1"})
        alter("no such kind", name, {"a": "b"}, kind=77)
        alter("nothing", name, {})


def incremental_alter_configs(peer: Peer) -> None:
    """Set, delete, append, subtract, and everything that is wrong."""
    put, delete, append, subtract = range(4)
    for version in peer.each("incremental_alter_configs"):
        name = peer.topic(f"iac-{version}")

        def alter(
            label: str,
            *entries: tuple[str, int, str | None],
            resource: str = name,
            kind: int = TOPIC,
            only: bool = False,
            name: str = name,
            version: int = version,
        ) -> None:
            configs = [
                {"name": key, "config_operation": operation, "value": value} for key, operation, value in entries
            ]
            peer.ask(label, "incremental_alter_configs", version, validate_only=only,
                     resources=[{"resource_type": kind, "resource_name": resource, "configs": configs}])  # fmt: skip
            show(peer, f"after {label}", "incremental_alter_configs", version, name)

        alter("validated only", ("retention.ms", put, "7000"), only=True)
        alter("set", ("retention.ms", put, "7000"), ("segment.bytes", put, "2000000"))
        alter("append to a list", ("cleanup.policy", append, "compact"))
        alter("append what is there", ("cleanup.policy", append, "compact"))
        alter("subtract from a list", ("cleanup.policy", subtract, "delete"))
        alter("subtract what is not there", ("cleanup.policy", subtract, "delete"))
        alter("append to no list", ("retention.ms", append, "1"))
        alter("delete", ("retention.ms", delete, None))
        alter("delete what is not set", ("retention.ms", delete, None))
        alter("a wrong value", ("segment.bytes", put, "many"))
        alter("an unknown setting", ("no.such", put, "1"))
        alter("a null value", ("segment.bytes", put, None))
        alter("no such operation", ("segment.bytes", 9, "1"))
        alter("the same setting twice", ("segment.ms", put, "1"), ("segment.ms", put, "2"))
        alter("no such topic", ("retention.ms", put, "1"), resource=peer.stem + "-none")
        alter("no such kind", ("retention.ms", put, "1"), kind=77)
        alter("nothing")
        both = {
            "resource_type": TOPIC,
            "resource_name": name,
            "configs": [{"name": "segment.ms", "config_operation": put, "value": "50000"}],
        }
        peer.ask("the same topic twice", "incremental_alter_configs", version, resources=[both, both])


def show(peer: Peer, label: str, api: str, version: int, name: str) -> None:
    """What a topic's own settings are now. Kafka applies changes in order, so a topic made after them shows that they are."""
    peer.topic(f"marker-{len(peer.entries)}")
    answer = peer.quietly(
        "describe_configs", 4, resources=[{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}]
    )
    own = {each["name"]: each["value"] for each in answer["results"][0]["configs"] if each["config_source"] == 1}
    peer.note(label, api, version, own)


def list_config_resources(peer: Peer) -> None:
    """Resources that carry settings."""
    name = peer.topic("lcr", config={"retention.ms": "5000"})
    for version in peer.each("list_config_resources"):
        for kinds in ([], [TOPIC], [BROKER], [16], [32], [77]):
            if version == 0 and kinds:
                continue
            answer = peer.quietly("list_config_resources", version, resource_types=kinds)
            answer["config_resources"] = [
                each
                for each in answer["config_resources"]
                if not each["resource_name"] or each["resource_name"] in {name, "1"}
            ]
            peer.note(f"kinds {kinds}", "list_config_resources", version, answer)


def describe_cluster(peer: Peer) -> None:
    """Brokers, controllers, operations."""
    for version in peer.each("describe_cluster"):
        for kind in (1, 2, 3):
            peer.ask(f"endpoint type {kind}", "describe_cluster", version, endpoint_type=kind)
        peer.ask("operations", "describe_cluster", version, endpoint_type=1, include_cluster_authorized_operations=True)
        peer.ask("fenced too", "describe_cluster", version, endpoint_type=1, include_fenced_brokers=True)


def describe_topic_partitions(peer: Peer) -> None:
    """Pages of partitions."""
    one, two = peer.topic("dtp1", partitions=3), peer.topic("dtp2", partitions=2)
    names = [{"name": one}, {"name": two}]
    for version in peer.each("describe_topic_partitions"):
        for limit in (2000, 1, 3, 4, 0, -1):
            peer.ask(
                f"limit {limit}",
                "describe_topic_partitions",
                version,
                topics=names,
                response_partition_limit=limit,
                cursor=None,
            )
        for topic, number in ((one, 2), (two, 0), (two, 9), (peer.stem + "-none", 0)):
            cursor = {"topic_name": topic, "partition_index": number}
            peer.ask(
                f"from {topic} {number}",
                "describe_topic_partitions",
                version,
                topics=names,
                response_partition_limit=2,
                cursor=cursor,
            )
        peer.ask(
            "a negative cursor",
            "describe_topic_partitions",
            version,
            topics=names,
            response_partition_limit=2,
            cursor={"topic_name": one, "partition_index": -1},
        )
        peer.ask(
            "no such topic",
            "describe_topic_partitions",
            version,
            topics=[{"name": peer.stem + "-none"}],
            response_partition_limit=9,
            cursor=None,
        )
        peer.ask(
            "a wrong name",
            "describe_topic_partitions",
            version,
            topics=[{"name": "a/b"}],
            response_partition_limit=9,
            cursor=None,
        )


def describe_log_dirs(peer: Peer) -> None:
    """Sizes of partitions; null is all of them."""
    name = peer.topic("ld", partitions=2)
    peer.write(name, batch(numbered(10)))
    for version in peer.each("describe_log_dirs"):
        peer.ask("one topic", "describe_log_dirs", version, topics=[{"topic": name, "partitions": [0, 1]}])
        peer.ask("one partition", "describe_log_dirs", version, topics=[{"topic": name, "partitions": [0]}])
        peer.ask("no such partition", "describe_log_dirs", version, topics=[{"topic": name, "partitions": [9]}])
        peer.ask(
            "no such topic", "describe_log_dirs", version, topics=[{"topic": peer.stem + "-none", "partitions": [0]}]
        )
        peer.ask("nothing", "describe_log_dirs", version, topics=[])
        answer = peer.quietly("describe_log_dirs", version, topics=None)
        for result in answer["results"]:
            result["topics"] = [each for each in result["topics"] if each["name"] == name]
        peer.note("everything", "describe_log_dirs", version, answer)


def alter_replica_log_dirs(peer: Peer) -> None:
    """Each partition by itself. The directory where a replica is already is no move."""
    name = peer.topic("ard", partitions=2)
    (directory,) = (each["log_dir"] for each in peer.quietly("describe_log_dirs", 1, topics=None)["results"])
    for version in peer.each("alter_replica_log_dirs"):

        def alter(label: str, *wanted: tuple[str, str, list[int]], version: int = version) -> None:
            dirs = [{"path": path, "topics": [{"name": topic, "partitions": of}]} for path, topic, of in wanted]
            peer.ask(label, "alter_replica_log_dirs", version, dirs=dirs)

        alter("where it is", (directory, name, [0, 1]))
        alter("no such directory", ("/nowhere", name, [0]))
        alter("relative", ("data", name, [0]))
        alter("with a slash at the end", (directory + "/", name, [0]))
        alter("empty", ("", name, [0]))
        alter("no such topic", (directory, peer.stem + "-none", [0]))
        alter("no such partition", (directory, name, [7, -1]))
        alter("a long name", (directory, "n" * 210, [0]), (directory, "n" * 249, [0]))
        alter("no name", (directory, "a/b", [0]))
        alter("no name, no directory", ("/nowhere", "n" * 249, [0]))
        alter("no partition", (directory, name, []))
        alter("nothing")
        alter("twice", (directory, name, [0, 0]), ("/nowhere", name, [0]))


def auto_creation(peer: Peer) -> None:
    """Pitfall 43: the request's own flag decides, and the topic answers soon after."""
    for version in (each for each in peer.each("metadata") if each >= 4):
        name = f"{peer.stem}-auto-{version}"
        peer.ask("not allowed", "metadata", version, topics=[{"name": name}], allow_auto_topic_creation=False)
        peer.ask("allowed", "metadata", version, topics=[{"name": name}], allow_auto_topic_creation=True)


def signing_in_where_there_is_no_need(peer: Peer) -> None:
    """Pitfall 6: listed even on a plaintext listener, and refused there."""
    for version in peer.each("sasl_handshake"):
        peer.ask("a handshake", "sasl_handshake", version, mechanism="PLAIN")
    for version in peer.each("sasl_authenticate"):
        peer.ask("a token", "sasl_authenticate", version, auth_bytes=b"\0user\0secret")


def access_control(peer: Peer) -> None:
    """Without an authorizer: SECURITY_DISABLED, of the whole or of each entry."""
    filters: dict[str, Any] = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    anything = filters | {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    for version in peer.each("describe_acls"):
        peer.ask("all", "describe_acls", version, **anything)
    entry = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    for version in peer.each("create_acls"):
        peer.ask("none", "create_acls", version, creations=[])
        peer.ask("two", "create_acls", version, creations=[entry, entry])
    for version in peer.each("delete_acls"):
        peer.ask("none", "delete_acls", version, filters=[])
        peer.ask("two", "delete_acls", version, filters=[anything, anything])


def list_transactions(peer: Peer) -> None:
    """There are none; states that are no states are named."""
    peer.quietly("find_coordinator", 4, key_type=1, coordinator_keys=["any"])
    for version in peer.each("list_transactions"):
        none: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        none["transactional_id_pattern"] = None
        peer.ask("all", "list_transactions", version, **none)
        for states in (["Ongoing"], ["ongoing"], ["Empty", "Dead", "PrepareEpochFence"], ["nonsense", "nonsense"]):
            peer.ask(f"states {states}", "list_transactions", version, **(none | {"state_filters": states}))
        peer.ask("of a producer", "list_transactions", version, **(none | {"producer_id_filters": [7]}))
        peer.ask("of a duration", "list_transactions", version, **(none | {"duration_filter": 5}))
        peer.ask("of a pattern", "list_transactions", version, **(none | {"transactional_id_pattern": "a.*"}))


def reassignments(peer: Peer) -> None:
    """None are going on, whatever is asked about."""
    name = peer.topic("ra")
    for version in peer.each("list_partition_reassignments"):
        peer.ask("all", "list_partition_reassignments", version, topics=None, **PATIENCE)
        for topic, indexes in ((name, [0]), (name, [7]), (name, []), ("never-made", [0]), ("a/b", [0])):
            asked = [{"name": topic, "partition_indexes": indexes}]
            peer.ask(f"{topic} {indexes}", "list_partition_reassignments", version, topics=asked, **PATIENCE)
        peer.ask("nothing", "list_partition_reassignments", version, topics=[], **PATIENCE)


def alter_reassignments(peer: Peer) -> None:
    """One broker can be asked for what it has already, for what cannot be, and to cancel what does not run."""
    name = peer.topic("ar", partitions=2)
    for version in peer.each("alter_partition_reassignments"):
        factors: tuple[dict[str, Any], ...] = (
            {"allow_replication_factor_change": True},
            {"allow_replication_factor_change": False},
        )
        for options in factors if version else ({},):

            def alter(
                label: str,
                *wanted: tuple[str, int, list[int] | None],
                version: int = version,
                options: dict[str, Any] = options,
            ) -> None:
                topics = [
                    {"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}
                    for topic, index, replicas in wanted
                ]
                peer.ask(
                    f"{label} {options}", "alter_partition_reassignments", version, topics=topics, **options, **PATIENCE
                )

            alter("the same", (name, 0, [1]))
            alter("unknown broker", (name, 0, [99]))
            alter("one more", (name, 0, [1, 99]))
            alter("twice", (name, 0, [1, 1]))
            alter("none", (name, 0, []))
            alter("negative", (name, 0, [-1]))
            alter("cancel", (name, 1, None))
            alter("no such topic", ("never-made", 0, [1]))
            alter("no such partition", (name, 9, [1]), (name, -1, None))
            alter("several", (name, 0, [1]), (name, 1, None), ("never-made", 0, None))
            alter("nothing")
        peer.ask("nothing goes on", "list_partition_reassignments", 0, topics=None, **PATIENCE)


def elect_leaders(peer: Peer) -> None:
    """Every partition has its preferred leader."""
    name = peer.topic("el", partitions=2)
    for version in peer.each("elect_leaders"):
        for election in (0, 1, 2) if version else (0,):

            def elect(
                label: str, *asked: tuple[str, list[int]], election: int = election, version: int = version
            ) -> None:
                wanted = [{"topic": topic, "partitions": indexes} for topic, indexes in asked]
                label = f"{label}, election {election}"
                peer.ask(label, "elect_leaders", version, election_type=election, topic_partitions=wanted, **PATIENCE)

            elect("all of a topic", (name, [0, 1]))
            elect("no such partition", (name, [0, 9, -1]))
            elect("no such topic", ("never-made", [0]))
            elect("no partitions", (name, []))
            elect("twice", (name, [0]), (name, [0, 0]))
            elect("nothing")
            answer = peer.quietly("elect_leaders", version, election_type=election, topic_partitions=None, **PATIENCE)
            results = answer["replica_election_results"]
            answer["replica_election_results"] = [each for each in results if each["topic"] == name]
            peer.note(f"everything, election {election}", "elect_leaders", version, answer)


def scram_credentials(peer: Peer) -> None:
    """No user has any."""
    for version in peer.each("describe_user_scram_credentials"):
        for users in (None, [], ["a"], ["a", "b"], ["a", "b", "a"], [""]):
            asked = None if users is None else [{"name": name} for name in users]
            peer.ask(f"users {users}", "describe_user_scram_credentials", version, users=asked)


def alter_scram_credentials(peer: Peer) -> None:
    """Which credentials are refused, and one that is made and deleted."""
    good = {"name": f"{peer.stem}-user", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16}
    good["salted_password"] = b"p" * 32
    key = {"name": good["name"], "mechanism": 1}

    def is_there() -> bool:
        asked = [{"name": good["name"]}]
        found = peer.quietly("describe_user_scram_credentials", 0, users=asked)["results"][0]
        return not found["error_code"]

    for version in peer.each("alter_user_scram_credentials"):

        def alter(
            label: str, *upsertions: dict[str, Any], deletions: tuple[dict[str, Any], ...] = (), version: int = version
        ) -> None:
            peer.ask(label, "alter_user_scram_credentials", version, deletions=deletions, upsertions=upsertions)

        alter("nothing")
        for wrong in ({"iterations": 4095}, {"iterations": 16385}, {"iterations": -1}, {"mechanism": 0},
                      {"mechanism": 3}, {"name": ""}):  # fmt: skip
            alter(f"wrong: {wrong}", good | wrong)
            alter(f"deleted, wrong: {wrong}", deletions=(key | {name: wrong[name] for name in wrong.keys() & key},))
        alter("twice", good, good)
        alter("set and deleted", good, deletions=(key,))
        alter("set", good)
        until(is_there, what="the credential")
        alter("deleted", deletions=(key,))
        until(lambda: not is_there(), what="its end")


def delegation_tokens(peer: Peer) -> None:
    """Clients that have not signed in get no tokens. kio cannot read some answers: no time is -1 in them."""
    user = {"principal_type": "User", "principal_name": "a"}
    asked: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
        (
            "create_delegation_token",
            tuple({"renewers": renewers} for renewers in ([], [user], [user | {"principal_type": "x"}])),
        ),
        ("describe_delegation_token", tuple({"owners": owners} for owners in (None, [], [user]))),
        ("renew_delegation_token", ({"hmac": b"h", "renew_period_ms": 1000},)),
        ("expire_delegation_token", ({"hmac": b"h", "expiry_time_period_ms": -1},)),
    )
    wire = peer.connection()
    for api, requests in asked:
        for version in peer.each(api):
            for fields in requests:
                wire.send_frame(encode(api, version, 7, fields))
                peer.note(f"not signed in: {fields}", api, version, wire.receive_frame())
