"""Kafka's tools with `--command-config` administer a secured Ottla, and write what they write of a secured Kafka.

Both brokers have SASL over TLS and StandardAuthorizer. Each tool runs with the same arguments for both, in one JVM. Where
Kafka's order is that of hash tables, lines are compared without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sign_in.cases import Case
from tests.sign_in.clients import java_settings
from tests.sign_in.secured_broker import TOPIC, SecuredBroker, in_properties
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import Ended, KafkaTools

pytestmark = [pytest.mark.external, pytest.mark.slow]
TOOLS = "org.apache.kafka.tools."
ACLS, TOKENS, TOPICS = (f"{TOOLS}{name}Command" for name in ("Acl", "DelegationToken", "Topic"))
GROUPS, PRODUCER, CONSUMER = (
    f"{TOOLS}{name}" for name in ("consumer.group.ConsumerGroupCommand", "ConsoleProducer", "consumer.ConsoleConsumer")
)
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice",
    "delegation.token.secret.key": "a secret of the brokers",
    "group.initial.rebalance.delay.ms": "0",
}
PASSWORDS = {"bob": "the secret of bob", "eve": "the secret of eve"}


class Side:
    """A broker, and its users' files for --command-config."""

    def __init__(self, directory: Path, jars: Path | None) -> None:
        directory.mkdir()
        self.broker = SecuredBroker(directory, jars, settings=SETTINGS)
        self._directory = directory
        self.hmac = ""

    def start(self) -> None:
        self.broker.start()
        sign_in = self.broker.sign_in(Case("SCRAM-SHA-512"))
        self.bootstrap = sign_in["bootstrap"]
        users = {
            "alice": sign_in,
            **{name: {**sign_in, "user": name, "password": PASSWORDS[name]} for name in PASSWORDS},
        }
        users["mallory"] = {**sign_in, "password": "wrong"}
        for name, given in users.items():
            settings = {key: value for key, value in java_settings(given).items() if "." in key}  # type: ignore[arg-type]
            text = "".join(
                f"{key}={in_properties(value)}\n" for key, value in settings.items() if key != "bootstrap.servers"
            )
            self.file(name).write_text(text)

    def file(self, user: str) -> Path:
        return self._directory / f"{user}.properties"


class Brokers:
    """Both brokers and the tools."""

    def __init__(self, tools: KafkaTools, ottla: Side, kafka: Side) -> None:
        self.tools, self.ottla, self.kafka = tools, ottla, kafka

    def both(self, tool: str, *arguments: str, user: str = "alice", stdin: str = "") -> Ended:
        """Run a tool for each broker; what came of it with both."""
        ours, theirs = (self._run(side, tool, *arguments, user=user, stdin=stdin) for side in (self.ottla, self.kafka))
        assert (ours.code, comparable(ours.output)) == (theirs.code, comparable(theirs.output))
        return ours

    def _run(self, side: Side, tool: str, *arguments: str, user: str, stdin: str) -> Ended:
        given = [side.hmac if argument == "HMAC" else argument for argument in arguments]
        at = ("--bootstrap-server", side.bootstrap, "--command-config", str(side.file(user)))
        ended = self.tools.run(tool, *at, *given, stdin=stdin)
        if "--create" in arguments and (made := re.search(r"^\S+\s+(\S+==)\s", ended.output, re.MULTILINE)):
            side.hmac = made[1]
        return ended


def comparable(output: str) -> list[str]:
    """Leave out what is different in each cluster, and the order of lines."""
    for pattern, replacement in (
        (r"localhost:\d+", "BROKER"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d\b", "TIME"),
        (r"\[20\d\d-\d\d-\d\d [\d:,]+\]", "[TIME]"),
        (r"TopicId: \S+", "TopicId: ID"),
        (r"^[\w-]{22}(?=\s)|(?<=tokenId : )\S+", "TOKEN"),
        (r"^\s*at .*|^\s*\.\.\. \d+ more|^.*Tools\$Ended.*|^ended$", ""),
        (
            r"^\s*min\.insync\.replicas=1 .*|min\.insync\.replicas=1",
            "",
        ),  # Kafka's storage tool writes it into the settings of the cluster
        (r"\S{86}==", "HMAC"),
        (r"console-(consumer|producer)-[\w-]+", r"console-\1"),
        (r"\S*/(\w+\.properties)", r"\1"),
        (r"Request Request\(.*", "Cluster authorization failed."),  # Kafka's server says what its objects look like
        (r"(Invalid value \S+ for configuration [\w.]+):.*", r"\1"),  # each has its own words for what is wrong
        (r"[ \t]+", " "),
    ):
        output = re.sub(pattern, replacement, output, flags=re.MULTILINE)
    lines = (line.strip() for line in output.splitlines())
    return sorted(_without_order(line) for line in lines if line)


def _without_order(line: str) -> str:
    head, is_list, rest = line.partition(" are ")
    return head + is_list + ", ".join(sorted(rest.split(", "))) if is_list else line


@pytest.fixture(scope="module")
def brokers(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("tools")
    sides = Side(directory / "ottla", None), Side(directory / "kafka", kafka_jars)
    for side in sides:
        side.start()
    tools = KafkaTools(kafka_jars, directory / "tools.err")
    brokers = Brokers(tools, *sides)
    for name, password in PASSWORDS.items():
        credential = f"SCRAM-SHA-512=[iterations=8192,password={password}]"
        assert "Completed updating config" in configs(brokers, "users", name, "--alter", "--add-config", credential)
    yield brokers
    tools.close()
    for side in sides:
        side.broker.stop()


def configs(brokers: Brokers, kind: str, name: str, *arguments: str) -> str:
    """Run kafka-configs.sh about one entity, which is the default one if it has no name."""
    of_name = ("--entity-name", name) if name else ("--entity-default",)
    return brokers.both(CONFIG_COMMAND, "--entity-type", kind, *of_name, *arguments).output


def test_kafka_acls_adds_lists_and_removes(brokers: Brokers) -> None:
    of_bob = ("--allow-principal", "User:bob")
    topic = ("--topic", TOPIC)
    assert brokers.both(ACLS, "--add", *of_bob, *topic, "--producer").code == 0
    brokers.both(ACLS, "--add", *of_bob, *topic, "--consumer", "--group", "readers")
    brokers.both(ACLS, "--add", *of_bob, "--topic", "b-", "--resource-pattern-type", "prefixed", "--operation", "All")
    brokers.both(
        ACLS, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.0/8", *topic, "--operation", "Read"
    )
    brokers.both(ACLS, "--add", *of_bob, "--cluster", "--operation", "DescribeConfigs", "--allow-host", "10.0.0.1")
    brokers.both(ACLS, "--add", *of_bob, "--user-principal", "User:carol", "--operation", "CreateTokens")
    assert "(principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW)" in brokers.both(ACLS, "--list").output
    brokers.both(ACLS, "--list", *topic)
    brokers.both(ACLS, "--list", "--topic", "b-1", "--resource-pattern-type", "match")
    brokers.both(ACLS, "--list", "--principal", "User:eve")
    brokers.both(ACLS, "--list", "--topic", "no-such")
    assert brokers.both(ACLS, "--add", *of_bob, "--group", "g", "--operation", "Write").code == 1
    assert brokers.both(ACLS, "--list", user="eve").code == 1
    brokers.both(ACLS, "--remove", "--force", "--deny-principal", "User:eve", "--deny-host", "10.0.0.0/8", *topic)
    brokers.both(ACLS, "--remove", "--force", "--cluster")
    assert "kafka-cluster" not in brokers.both(ACLS, "--list").output


def test_the_console_clients_and_topics_show_a_user_what_it_may_see(brokers: Brokers) -> None:
    of_bob = ("--allow-principal", "User:bob", "--topic", TOPIC)
    brokers.both(ACLS, "--add", *of_bob, "--producer")
    brokers.both(ACLS, "--add", *of_bob, "--consumer", "--group", "readers")
    topic = ("--topic", TOPIC)
    brokers.both(PRODUCER, *topic, user="bob", stdin="a\nb\nc\n")
    reading = (*topic, "--group", "readers", "--from-beginning", "--max-messages", "3", "--timeout-ms", "30000")
    read = brokers.both(CONSUMER, *reading, user="bob")
    assert [line for line in read.output.splitlines() if len(line) == 1] == ["a", "b", "c"]
    assert TOPIC in brokers.both(TOPICS, "--list", user="bob").output
    assert TOPIC not in brokers.both(TOPICS, "--list", user="eve").output
    for user, code in (("alice", 0), ("bob", 1), ("eve", 1)):
        assert brokers.both(TOPICS, "--describe", *topic, user=user).code == code  # of its settings, too
        brokers.both(GROUPS, "--list", user=user)
        brokers.both(GROUPS, "--describe", "--group", "readers", user=user)
    assert brokers.both(TOPICS, "--create", "--topic", "new", user="eve").code == 1
    brokers.both(GROUPS, "--delete", "--group", "readers", user="eve")
    brokers.both(PRODUCER, *topic, user="eve", stdin="a\n")
    brokers.both(CONSUMER, *reading, user="eve")


@pytest.mark.parametrize("tool", [(TOPICS, "--list"), (ACLS, "--list"), (GROUPS, "--list"), (TOKENS, "--describe")])
def test_a_wrong_password_is_reported(brokers: Brokers, tool: tuple[str, ...]) -> None:
    ended = brokers.both(*tool, user="mallory")
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in ended.output


def test_kafka_configs_changes_and_shows_users(brokers: Brokers) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        configs(brokers, "users", "fay", "--alter", "--add-config", f"{mechanism}=[iterations=8192,password=fays]")
    assert "SCRAM-SHA-256=iterations=8192" in configs(brokers, "users", "fay", "--describe")
    configs(brokers, "users", "fay", "--alter", "--delete-config", "SCRAM-SHA-256")
    configs(brokers, "users", "fay", "--alter", "--add-config", "SCRAM-SHA-512=[iterations=1,password=fays]")
    configs(brokers, "users", "fay", "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in configs(brokers, "users", "fay", "--describe")


def test_kafka_configs_changes_and_shows_quotas(brokers: Brokers) -> None:
    for kind, name in (("users", "gus"), ("users", ""), ("clients", "c"), ("clients", "")):
        configs(brokers, kind, name, "--alter", "--add-config", "producer_byte_rate=1048576,consumer_byte_rate=2097152")
        assert "producer_byte_rate=1048576.0" in configs(brokers, kind, name, "--describe")
    both = ("--entity-type", "users", "--entity-name", "gus", "--entity-type", "clients", "--entity-name", "c")
    brokers.both(CONFIG_COMMAND, *both, "--alter", "--add-config", "request_percentage=200")
    brokers.both(CONFIG_COMMAND, *both, "--describe")
    brokers.both(CONFIG_COMMAND, "--entity-type", "users", "--describe")
    configs(brokers, "ips", "127.0.0.9", "--alter", "--add-config", "connection_creation_rate=10")
    configs(brokers, "ips", "127.0.0.9", "--describe")
    configs(brokers, "users", "gus", "--alter", "--add-config", "no_such_rate=1")
    configs(brokers, "users", "gus", "--alter", "--add-config", "producer_byte_rate=fast")
    for kind, name in (("users", "gus"), ("users", ""), ("clients", "c"), ("clients", "")):
        configs(brokers, kind, name, "--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate")
        configs(brokers, kind, name, "--describe")


def test_kafka_configs_changes_and_shows_settings_of_brokers(brokers: Brokers) -> None:
    for name in ("1", ""):
        configs(
            brokers, "brokers", name, "--alter", "--add-config", "log.retention.ms=8640000,message.max.bytes=2000000"
        )
        assert "log.retention.ms=8640000" in configs(brokers, "brokers", name, "--describe")
        configs(brokers, "brokers", name, "--alter", "--delete-config", "log.retention.ms,message.max.bytes")
        configs(brokers, "brokers", name, "--describe")
    configs(brokers, "brokers", "1", "--alter", "--add-config", "log.retention.ms=none")
    configs(brokers, "brokers", "1", "--alter", "--add-config", "node.id=2")


def test_kafka_delegation_tokens_creates_describes_renews_and_expires(brokers: Brokers) -> None:
    for user in ("bob", "alice"):
        made = brokers.both(
            TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:eve", user=user
        )
        assert made.code == 0
        brokers.both(TOKENS, "--describe", user=user)
        brokers.both(TOKENS, "--describe", "--owner-principal", "User:bob", user=user)
        brokers.both(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", "HMAC", user="eve")
        brokers.both(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", "HMAC", user=user)
        brokers.both(TOKENS, "--describe", user=user)
        assert brokers.both(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", "HMAC", user=user).code == 1
