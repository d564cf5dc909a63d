"""`ottla acl`, `user`, `quota` and `token`, and Kafka's tools, on a real Kafka with StandardAuthorizer and on Ottla."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.core.clock import SystemClock
from ottla.security.dev_certificates import ADMIN, CLIENT, LOCAL_HOSTS, make_certificates
from tests.processes.cli_runner import Cli
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import ConfiguredOttla
from tests.support.processes import free_port, until
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.external, pytest.mark.slow]
ACLS = "org.apache.kafka.tools.AclCommand"
PASSWORD = "a long secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Secured:
    """A broker with SCRAM on one listener, and on the other super users who do not sign in."""

    def __init__(self, kind: str, jars: Path, directory: Path) -> None:
        self.jars, port, self.tls_port = jars, free_port(), free_port()
        self.certificates = make_certificates(
            directory / "certs", hosts=LOCAL_HOSTS, days=2, now_ms=SystemClock().wall_ms()
        )
        self.broker = RealKafka(jars, directory / kind) if kind == "kafka" else ConfiguredOttla(directory / kind)
        listeners = f"PLAINTEXT://127.0.0.1:{self.broker.port},SASL_PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{self.tls_port}"
        of_certificates = self.certificates.broker_settings()
        settings = {
            **of_certificates,
            "advertised.listeners": listeners,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;{of_certificates['super.users']}",
            "delegation.token.secret.key": "a secret of the brokers",
        }
        if isinstance(self.broker, RealKafka):
            protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"
            settings |= {
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self.broker.controller_port}",
                "listener.security.protocol.map": protocols,
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM,
            }
        else:
            settings |= {"listeners": listeners, "offsets.topic.replication.factor": "1"}
        with self.broker.properties.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())
        self.cli = Cli(self.broker.bootstrap, directory)
        self.signed_in = Cli(f"127.0.0.1:{port}", directory)

    def as_user(self, name: str, *arguments: str, mechanism: str = "SCRAM-SHA-512", code: int = 0) -> str:
        """Run a command signed in as a user; its output, or the message of its failure."""
        done = self.signed_in.run(*self.options(name, mechanism), *arguments, code=code)
        return (done.stderr if code else done.stdout).decode()

    def options(self, name: str, mechanism: str = "SCRAM-SHA-512") -> list[str]:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": PASSWORD,
        }
        return [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]

    def by_certificate(self, name: str, *arguments: str) -> bytes:
        """Run a command with a certificate; its output."""
        settings = self.certificates.client_settings(name)
        options = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
        return Cli(f"localhost:{self.tls_port}", self.cli.home).out(*options, *arguments)

    def tool(self, main: str, *arguments: str) -> str:
        return run_tool(self.jars, main, "--bootstrap-server", self.broker.bootstrap, *arguments)


@pytest.fixture(scope="module", params=["kafka", "ottla"])
def secured(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    found = Secured(request.param, kafka_jars, tmp_path_factory.mktemp("secured"))
    found.broker.start()
    yield found
    found.broker.stop()


def user(secured: Secured, name: str, *arguments: str) -> None:
    """Create a user with the password."""
    secured.cli.out("user", "create", name, "--password-file", "-", *arguments, stdin=PASSWORD.encode() + b"\n")


def rows(secured: Secured, *arguments: str) -> Any:
    return secured.cli.json(*arguments)


# ---- Certificates


def test_certificates_of_certs_dev_sign_in_with_the_names_of_users(secured: Secured) -> None:
    secured.cli.out("topic", "create", "certified")
    assert b"certified" in secured.by_certificate(ADMIN, "topic", "list"), "a super user"
    assert b"certified" not in secured.by_certificate(CLIENT, "topic", "list")
    secured.cli.out("acl", "create", "--allow-principal", "User:client", "--topic", "certified", "--producer")
    assert b"certified" in secured.by_certificate(CLIENT, "topic", "list")


# ---- Users


def test_a_user_signs_in_with_both_mechanisms_until_it_is_deleted(secured: Secured) -> None:
    cli = secured.cli
    dry = cli.out("user", "create", "ann", "--password-file", "-", "--dry-run", stdin=PASSWORD.encode())
    assert dry == b"would create ann\n"
    assert "ann" not in {row["name"] for row in rows(secured, "user", "list")}
    user(secured, "ann")
    assert {"name": "ann", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": [8192, 8192]} in rows(
        secured, "user", "list"
    )
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        secured.as_user("ann", "cluster", "brokers", mechanism=mechanism)

    taken = cli.fails("user", "create", "ann", "--password-file", "-", code=2, stdin=b"x")
    assert "there is a user ann already" in taken
    assert "`ottla user alter ann`" in taken
    cli.out("user", "alter", "ann", "--password-file", "-", stdin=b"another")
    assert "SASL_AUTHENTICATION_FAILED" in secured.as_user("ann", "cluster", "brokers", code=1)
    assert "did you mean ann?" in cli.fails("user", "alter", "anne", "--password-file", "-", code=4, stdin=b"x")

    assert cli.out("user", "delete", "ann", "--mechanism", "SCRAM-SHA-256") == b"deleted ann\n"
    assert rows(secured, "user", "list", "ann")[0]["mechanisms"] == ["SCRAM-SHA-512"]
    assert cli.out("user", "delete", "ann", "--dry-run") == b"would delete ann\n"
    assert cli.out("user", "delete", "ann") == b"deleted ann\n"
    cli.fails("user", "delete", "ann", code=4)


def test_users_that_a_pattern_selects_are_deleted_with_yes(secured: Secured) -> None:
    for name in ("app-1", "app-2"):
        user(secured, name, "--mechanism", "SCRAM-SHA-256", "--iterations", "4096")
    assert "add --yes" in secured.cli.fails("user", "delete", "app-*", code=2)
    assert secured.cli.out("user", "delete", "app-*", "--yes") == b"deleted app-1\ndeleted app-2\n"


def test_a_password_that_clients_hash_differently_is_refused(secured: Secured) -> None:
    failed = secured.cli.fails("user", "create", "odd", "--password-file", "-", code=2, stdin="a\u00adb".encode())
    assert "SASLprep" in failed
    assert "no password" in secured.cli.fails("user", "create", "odd", "--password-file", "-", code=2, stdin=b"\n")
    assert "--password-file" in secured.cli.fails("user", "create", "odd", code=2)
    assert not [row for row in rows(secured, "user", "list") if row["name"] == "odd"]


def test_the_users_of_ottla_and_of_kafka_configs_are_the_same(secured: Secured) -> None:
    user(secured, "bob")
    shown = secured.tool(CONFIG_COMMAND, "--describe", "--entity-type", "users", "--entity-name", "bob")
    assert "SCRAM-SHA-256=iterations=8192" in shown
    assert "SCRAM-SHA-512=iterations=8192" in shown
    secured.cli.out("user", "delete", "bob")


# ---- ACLs


def test_acls_allow_what_they_say_until_they_are_deleted(secured: Secured) -> None:
    cli = secured.cli
    user(secured, "carol")
    cli.out("topic", "create", "orders")
    assert "orders" not in secured.as_user("carol", "topic", "list")
    create = ["acl", "create", "--allow-principal", "carol", "--topic", "ord", "--resource-pattern-type", "prefixed"]
    create += ["--operation", "write,describe"]
    planned = json.loads(cli.out(*create, "--dry-run", "--format", "json"))
    texts = [f"allow User:carol {operation} topic ord (prefixed) from *" for operation in ("write", "describe")]
    assert planned == [{"name": text, "result": "would create"} for text in texts]
    assert not rows(secured, "acl", "list", "--allow-principal", "carol")
    assert [row["result"] for row in rows(secured, *create)] == ["created", "created"]
    assert [row["result"] for row in rows(secured, *create)] == ["exists", "exists"]
    found = rows(secured, "acl", "list", "--allow-principal", "User:carol", "--operation", "Write")
    assert found == [
        {
            "principal": "User:carol",
            "permission": "allow",
            "operation": "write",
            "resource": "topic",
            "name": "ord",
            "pattern": "prefixed",
            "host": "*",
        }
    ]
    secured.signed_in.run(*secured.options("carol"), "produce", "orders", stdin=b"a\n")
    assert rows(secured, "topic", "describe", "orders")["records"] == 1
    assert "orders" in secured.as_user("carol", "topic", "list")

    applying = ["acl", "list", "--topic", "orders", "--resource-pattern-type"]
    assert len(rows(secured, *applying, "match")) == 2
    assert not rows(secured, *applying, "literal")

    delete = ["acl", "delete", "--allow-principal", "carol"]
    listed = cli.run(*delete, code=2)
    assert listed.stdout.decode().count("would delete") == 2
    assert b"2 ACLs are selected, and nothing was changed" in listed.stderr
    assert cli.out(*delete, "--dry-run").decode().count("would delete") == 2
    assert len(rows(secured, "acl", "list", "--allow-principal", "carol")) == 2
    assert [row["result"] for row in rows(secured, *delete, "--yes")] == ["deleted", "deleted"]
    assert not rows(secured, "acl", "list", "--allow-principal", "carol")
    cli.fails(*delete, "--yes", code=4)
    assert "orders" not in secured.as_user("carol", "topic", "list")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["--producer", "--topic", "t"], ["--producer", "--topic", "t"]),
        (
            ["--producer", "--topic", "t", "--transactional-id", "x"],
            ["--producer", "--topic", "t", "--transactional-id", "x"],
        ),
        (["--consumer", "--topic", "t", "--group", "g"], ["--consumer", "--topic", "t", "--group", "g"]),
        (
            ["--consumer", "--topic", "t", "--group", "g", "--resource-pattern-type", "prefixed"],
            ["--consumer", "--topic", "t", "--group", "g", "--resource-pattern-type", "prefixed"],
        ),
        (["--cluster", "--operation", "alter"], ["--cluster", "--operation", "Alter"]),
        (["--topic", "*"], ["--topic", "*"]),
        (
            ["--user-principal", "u", "--operation", "create-tokens"],
            ["--user-principal", "User:u", "--operation", "CreateTokens"],
        ),
        (
            ["--delegation-token", "i", "--operation", "describe"],
            ["--delegation-token", "i", "--operation", "Describe"],
        ),
        (
            ["--topic", "t", "--operation", "read", "--allow-host", "10.0.0.1"],
            ["--topic", "t", "--operation", "Read", "--allow-host", "10.0.0.1"],
        ),
    ],
)
def test_the_same_options_of_kafka_acls_create_the_same_acls(
    secured: Secured, ours: list[str], theirs: list[str]
) -> None:
    secured.cli.out("acl", "create", "--allow-principal", "User:dora", *ours)
    secured.tool(ACLS, "--add", "--allow-principal", "User:erik", *theirs)
    by_us, by_them = (
        [{**row, "principal": ""} for row in rows(secured, "acl", "list", "--allow-principal", name)]
        for name in ("dora", "erik")
    )
    assert by_us
    assert by_us == by_them
    secured.cli.out("acl", "delete", "--allow-principal", "dora", "--allow-principal", "erik", "--yes")


def test_a_denial_wins(secured: Secured) -> None:
    user(secured, "fred")
    secured.cli.out("topic", "create", "payments", "--if-not-exists")
    secured.cli.out(
        "acl",
        "create",
        "--allow-principal",
        "fred",
        "--deny-principal",
        "fred",
        "--deny-host",
        "127.0.0.1",
        "--topic",
        "payments",
        "--operation",
        "describe",
    )
    assert "payments" not in secured.as_user("fred", "topic", "list")
    secured.cli.out("acl", "delete", "--deny-principal", "fred", "--yes")
    assert "payments" in secured.as_user("fred", "topic", "list")


def test_a_user_who_may_not_describe_the_cluster_gets_kafkas_error(secured: Secured) -> None:
    user(secured, "gina")
    for arguments in (["acl", "list"], ["user", "list"], ["quota", "list"]):
        assert "CLUSTER_AUTHORIZATION_FAILED" in secured.as_user("gina", *arguments, code=1)


def test_options_of_acls_that_mean_nothing_are_refused_before_a_request(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1", tmp_path)
    for arguments, message in (
        (["create", "--topic", "t"], "whom is it about?"),
        (["create", "--allow-principal", "a"], "what is it about?"),
        (["create", "--allow-principal", "a", "--topic", "t", "--operation", "fly"], "no such operation"),
        (["create", "--allow-principal", "a", "--group", "g", "--operation", "write"], "means nothing there"),
        (["create", "--allow-principal", "a", "--producer", "--group", "g"], "--producer needs --topic"),
        (["create", "--allow-principal", "a", "--consumer", "--topic", "t"], "--consumer needs --topic and --group"),
        (["create", "--allow-principal", "a:", "--topic", "t"], "is not a principal"),
        (["create", "--allow-principal", "a", "--topic", "t", "--resource-pattern-type", "match"], "write literal, "),
        (["create", "--allow-principal", "a", "--topic", "t", "--deny-host", "h"], "--deny-host needs"),
        (["delete", "--yes"], "selects every ACL"),
    ):
        assert message in cli.fails("acl", *arguments, code=2), arguments


# ---- Quotas


def test_quotas_are_set_listed_and_deleted(secured: Secured) -> None:
    cli = secured.cli
    of_both = ["--user", "hugo", "--client-id-default"]
    assert cli.out("quota", "set", *of_both, "producer_byte_rate=1MiB", "--dry-run") == (
        b"would set user=hugo client-id=<default> producer_byte_rate=1048576\n"
    )
    assert not rows(secured, "quota", "list")
    cli.out("quota", "set", *of_both, "producer_byte_rate=1MiB", "request_percentage=12.5")
    cli.out("quota", "set", "--user-default", "consumer_byte_rate=2000")
    cli.out("quota", "set", "--ip", "127.0.0.9", "connection_creation_rate=10")
    both = {
        "entity": {"user": "hugo", "client-id": None},
        "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
    }
    default = {"entity": {"user": None}, "quotas": {"consumer_byte_rate": 2000.0}}
    address = {"entity": {"ip": "127.0.0.9"}, "quotas": {"connection_creation_rate": 10.0}}
    assert rows(secured, "quota", "list") == [address, default, both]
    assert rows(secured, "quota", "list", "--user", "hugo") == [both]
    assert rows(secured, "quota", "list", "--user-default") == [default]
    shown = secured.tool(CONFIG_COMMAND, "--describe", "--entity-type", "users", "--entity-type", "clients")
    assert "producer_byte_rate=1048576.0" in shown

    assert "add --yes" in cli.fails("quota", "delete", *of_both, code=2)
    assert "did you mean" in cli.fails("quota", "delete", *of_both, "producer_byte_rat", code=4)
    assert cli.out("quota", "delete", *of_both, "request_percentage") == (
        b"deleted user=hugo client-id=<default> request_percentage\n"
    )
    cli.out("quota", "delete", *of_both, "--yes")
    cli.out("quota", "delete", "--user-default", "--yes")
    cli.out("quota", "delete", "--ip", "127.0.0.9", "--yes")
    assert not rows(secured, "quota", "list")
    cli.fails("quota", "delete", "--user-default", "--yes", code=4)


def test_quotas_that_mean_nothing_are_refused_before_a_request(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1", tmp_path)
    for arguments, message in (
        (["producer_byte_rate=1"], "whose limit?"),
        (["--user", "a", "--ip", "1.1.1.1", "producer_byte_rate=1"], "use --ip alone"),
        (["--user", "a", "--user-default", "producer_byte_rate=1"], "contradict"),
        (["--user", "a", "connection_creation_rate=1"], "there is no quota"),
        (["--user", "a", "producer_byte_rate=fast"], "not a number above 0 or a size"),
        (["--user", "a", "request_percentage=-1"], "not a number above 0"),
        (["--user", "a", "request_percentage=nan"], "not a number above 0"),
        (["--user", "a", "request_percentage"], "write NAME=VALUE"),
        (["--user", "", "request_percentage=1"], "has no name"),
    ):
        assert message in cli.fails("quota", "set", *arguments, code=2), arguments


# ---- Tokens


def test_tokens_are_created_listed_renewed_and_expired(secured: Secured) -> None:
    user(secured, "ida")
    secured.as_user("ida", "token", "create", "--dry-run")
    assert not json.loads(secured.as_user("ida", "token", "list", "--format", "json"))
    made = json.loads(
        secured.as_user("ida", "token", "create", "--renewer", "bob", "--max-lifetime", "2d", "--format", "json")
    )
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:ida", "User:ida", ["User:bob"])
    (listed,) = json.loads(secured.as_user("ida", "token", "list", "--format", "json"))
    assert listed == {name: value for name, value in made.items() if name != "hmac"}
    (with_secret,) = json.loads(secured.as_user("ida", "token", "list", "--hmac", "--format", "json"))
    assert with_secret["hmac"] == made["hmac"]
    assert made["id"] in secured.as_user("ida", "token", "list")

    def expires_later() -> bool:  # by a second, which the list shows: the brokers allow a day from now
        renewed = secured.as_user("ida", "token", "renew", made["id"], "--for", "36h")
        assert f"renewed {made['id']}: it expires" in renewed
        (listed,) = json.loads(secured.as_user("ida", "token", "list", "--owner", "ida", "--format", "json"))
        return bool(listed["expires"] > made["expires"])

    until(expires_later, what="a later end of the token")
    assert secured.as_user("ida", "token", "expire", made["id"], "--dry-run") == f"would expire {made['id']}\n"
    secured.as_user("ida", "token", "expire", made["id"])
    assert not secured.as_user("ida", "token", "list")
    assert "there is no token" in secured.as_user("ida", "token", "expire", made["id"], code=4)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_signs_in_as_its_owner_until_it_expires(secured: Secured, mechanism: str) -> None:
    user(secured, owner := f"olga-{mechanism[-3:]}")
    made = json.loads(secured.as_user(owner, "token", "create", "--format", "json"))
    assert made["hmac"]
    jaas = f'{SCRAM[:-1]} username="{made["id"]}" password="{made["hmac"]}" tokenauth="true";'
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    options = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
    secured.cli.out("topic", "create", "for-olga", "--if-not-exists")
    assert b"for-olga" not in secured.signed_in.out(*options, "topic", "list")
    secured.cli.out("acl", "create", "--allow-principal", owner, "--topic", "for-olga", "--operation", "describe")
    assert b"for-olga" in secured.signed_in.out(*options, "topic", "list")
    assert "NOT_ALLOWED" in secured.signed_in.fails(*options, "token", "create", code=1)
    secured.as_user(owner, "token", "expire", made["id"])
    assert "SASL_AUTHENTICATION_FAILED" in secured.signed_in.fails(*options, "topic", "list", code=1)


def test_a_client_that_did_not_sign_in_gets_no_token(secured: Secured) -> None:
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in secured.cli.fails("token", "create", code=1)
