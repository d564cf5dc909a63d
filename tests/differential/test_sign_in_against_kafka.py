"""Every step of a sign-in, right and wrong, is answered by Ottla as by Apache Kafka: error, message, end of connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scramp import ScramClient

from ottla.core.errors import ErrorCode
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import NotReady, free_port
from tests.support.secured_kafka import PASSWORD, USER, start_secured_kafka
from tests.support.wire_client import ConnectionEnded, Wire

pytestmark = [pytest.mark.external, pytest.mark.slow]
LOGIN = "org.apache.kafka.common.security"
Step = Callable[["Asker"], Any]


class Brokers(NamedTuple):
    """The ports of both, where clients sign in without TLS."""

    kafka: int
    ottla: int


@pytest.fixture(scope="module")
def brokers(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("sign-in")
    try:
        secured = start_secured_kafka(kafka_jars, directory / "kafka")
    except NotReady as error:
        pytest.fail(str(error))
    users = directory / "users"
    users.write_text(f"{USER}=scram-256\n")
    port = free_port()
    escaped = PASSWORD.replace('"', '\\"')
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{escaped}";',
        "connections.max.reauth.ms": "600000",
        "ottla.initial.users.file": str(users),
    }
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    ottla = OttlaProcess(directory / "ottla", options=options).start()
    yield Brokers(secured.ports["SASL_PLAINTEXT"], port)
    ottla.stop()
    secured.kafka.stop()


class Asker:
    """A connection, and what it was answered."""

    def __init__(self, port: int) -> None:
        self.wire = Wire(port, timeout_s=20)
        self.said: list[Any] = []
        self.scram = ScramClient(["SCRAM-SHA-256"], USER, "scram-256", c_nonce="abcdefghij0123456789")

    def ask(self, api: str, version: int, **values: Any) -> dict[str, Any]:
        answer = self.wire.call(api, version, **values)
        self.said.append((api, version, comparable(answer)))
        return answer

    def raw(self, token: bytes) -> None:
        self.wire.send_frame(token)
        self.said.append(("token", comparable({"auth_bytes": self.wire.receive_frame()})))


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what two right brokers choose freely."""
    found = {
        name: value for name, value in answer.items() if name in {"error_code", "error_message", "session_lifetime"}
    }
    if "mechanisms" in answer:
        found["mechanisms"] = sorted(answer["mechanisms"])
    if "auth_bytes" in answer:
        found["auth_bytes"] = re.sub(rb"(?<=[rsv]=)[^,]+", b"*", answer["auth_bytes"])
    return found


def handshake(mechanism: str, version: int = 1) -> Step:
    return lambda asker: asker.ask("sasl_handshake", version, mechanism=mechanism)


def token(auth_bytes: bytes, version: int = 2) -> Step:
    return lambda asker: asker.ask("sasl_authenticate", version, auth_bytes=auth_bytes)


def raw(auth_bytes: bytes) -> Step:
    return lambda asker: asker.raw(auth_bytes)


def request(api: str, version: int, **values: Any) -> Step:
    return lambda asker: asker.ask(api, version, **values)


def frame(content: bytes) -> Step:
    def send(asker: Asker) -> None:
        asker.wire.send_frame(content)
        asker.said.append(("frame", asker.wire.receive_frame()))

    return send


def metadata(version: int) -> Step:
    """Ask for a topic; what is said of it."""

    def ask(asker: Asker) -> None:
        answer = asker.wire.call("metadata", version, topics=[{"name": "orders"}])
        topics = [(topic["name"], topic["error_code"], topic["partitions"]) for topic in answer["topics"]]
        asker.said.append((version, answer.get("error_code"), answer["brokers"], topics))

    return ask


def scram(password: str = "scram-256", *, user: str = USER, change: Callable[[str], str] = str) -> Step:
    """Both tokens of SCRAM; only what came last counts, since Kafka ends the first one of a user that is not there."""

    def exchange(asker: Asker) -> None:
        client = ScramClient(["SCRAM-SHA-256"], user, password)
        answer = asker.wire.call("sasl_authenticate", 2, auth_bytes=client.get_client_first().encode())
        if answer["error_code"] == 0:
            client.set_server_first(answer["auth_bytes"].decode())
            answer = asker.wire.call("sasl_authenticate", 2, auth_bytes=change(client.get_client_final()).encode())
        asker.said.append(("scram", comparable(answer)))

    return exchange


PLAIN = f"\0{USER}\0{PASSWORD}".encode()
METADATA = request("metadata", 8, topics=[])


def SERVED(asker: Asker) -> None:  # noqa: N802 - a step, as those that are made
    """Ask as a client that has signed in."""
    asker.said.append(("served", bool(asker.wire.call("metadata", 8, topics=[])["brokers"])))


def served_versions(version: int) -> Step:
    """Ask for the versions; the lists differ."""

    def ask(asker: Asker) -> None:
        who = {"client_software_name": "a", "client_software_version": "1"}
        asker.said.append(asker.wire.call("api_versions", version, **who)["error_code"])

    return ask


SCENARIOS: dict[str, list[Step]] = {
    **{f"handshake {name!r} v{version}": [handshake(name, version)]
       for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "", "plain")
       for version in (0, 1)},
    **{f"versions v{version}": [served_versions(version)] for version in range(5)},
    "versions, then a handshake": [request("api_versions", 0), handshake("PLAIN"), token(PLAIN), SERVED],
    "versions twice": [request("api_versions", 0), request("api_versions", 0)],
    "versions that are invalid, then valid": [request("api_versions", 3), request("api_versions", 3, client_software_name="a", client_software_version="1"), handshake("PLAIN")],
    "metadata first": [METADATA],
    "a token first": [token(PLAIN)],
    "an unknown api": [frame(b"\x03\xe7\0\0\0\0\0\x01\0\0")],
    "an empty frame": [frame(b"")],
    "a frame of zeros": [frame(bytes(40))],
    "a handshake of an unknown version": [frame(b"\0\x11\0\x09\0\0\0\x01\0\0\0\x05PLAIN")],
    "metadata after a handshake": [handshake("PLAIN"), request("list_groups", 0), SERVED],
    **{f"metadata of a topic after a handshake, v{version}": [handshake("PLAIN"), metadata(version), SERVED] for version in range(14)},
    **{f"an offset commit after a handshake, v{version}": [handshake("PLAIN"), request("offset_commit", version, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}])] for version in (2, 9)},
    "an unauthorized offset fetch after a handshake": [handshake("PLAIN"), request("find_coordinator", 1, key="g", key_type=0), SERVED],
    "a handshake after a handshake": [handshake("PLAIN"), handshake("PLAIN")],
    "versions after a handshake": [handshake("PLAIN"), request("api_versions", 0)],
    **{f"plain v{version}": [handshake("PLAIN"), token(PLAIN, version), SERVED] for version in range(3)},
    **{f"plain, wrong: {wrong!r}": [handshake("PLAIN"), token(wrong), SERVED] for wrong in (
        b"", b"\0", b"\0\0", b"\0alice\0wrong", b"\0stranger\0x", b"bob" + PLAIN, b"alice" + PLAIN[:-2], b"\0alice\0", b"\0\0x", b"x" * 100_000)},
    "plain with its own authorization id": [handshake("PLAIN"), token(USER.encode() + PLAIN), SERVED],
    "scram": [handshake("SCRAM-SHA-256"), scram(), SERVED],
    "scram, a wrong password": [handshake("SCRAM-SHA-256"), scram("wrong"), SERVED],
    "scram, an unknown user": [handshake("SCRAM-SHA-256"), scram(user="stranger"), SERVED],
    "scram, another nonce": [handshake("SCRAM-SHA-256"), scram(change=lambda final: final.replace("r=", "r=x", 1)), SERVED],
    "scram, no proof": [handshake("SCRAM-SHA-256"), scram(change=lambda final: final.partition(",p=")[0]), SERVED],
    **{f"scram, first message {first!r}": [handshake("SCRAM-SHA-256"), token(first)] for first in (
        b"", b"n,,n=alice,r=abc", b"n,a=alice,n=alice,r=abc", b"n,a=root,n=alice,r=abc", b"y,,n=alice,r=abc", b"p=tls,,n=alice,r=abc",
        b"n,,r=abc,n=alice", b"n,,n=alice", b"n,,n=alice,r=abc,x=y", b"n,,n=al=2Cice,r=", b"\xff\xfe")},
    "raw plain": [handshake("PLAIN", 0), raw(PLAIN), SERVED],
    "raw plain, wrong": [handshake("PLAIN", 0), raw(b"\0alice\0wrong"), SERVED],
    "raw, a request in place of a token": [handshake("PLAIN", 0), token(PLAIN)],
    "a session is renewed": [handshake("PLAIN"), token(PLAIN), handshake("PLAIN"), token(PLAIN), SERVED],
    "a session is renewed too soon": [handshake("PLAIN"), token(PLAIN), handshake("PLAIN"), token(PLAIN), handshake("PLAIN"), SERVED, token(PLAIN), SERVED],
    "a session is renewed by another mechanism": [handshake("PLAIN"), token(PLAIN), handshake("SCRAM-SHA-256"), token(b"n,,n=alice,r=abc")],
    "a session is renewed with a wrong password": [handshake("PLAIN"), token(PLAIN), handshake("PLAIN"), token(b"\0alice\0wrong"), SERVED],
    "a scram session is renewed with a wrong password": [handshake("SCRAM-SHA-256"), scram(), handshake("SCRAM-SHA-256"), scram("wrong"), SERVED],
    "a request while a session is renewed": [handshake("PLAIN"), token(PLAIN), handshake("PLAIN"), request("list_groups", 0), SERVED],
    "a token after the sign-in": [handshake("PLAIN"), token(PLAIN), token(PLAIN), SERVED],
    "versions after the sign-in": [handshake("PLAIN"), token(PLAIN), request("api_versions", 0), request("api_versions", 0)],
}  # fmt: skip


def said(port: int, steps: list[Step]) -> list[Any]:
    asker = Asker(port)
    try:
        for step in steps:
            step(asker)
    except ConnectionEnded:
        asker.said.append("closed")
    finally:
        asker.wire.close()
    return asker.said


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_sign_in_is_answered_as_by_kafka(brokers: Brokers, scenario: str) -> None:
    steps = SCENARIOS[scenario]
    assert said(brokers.ottla, steps) == said(brokers.kafka, steps)


def test_what_ottla_says_and_kafka_does_not(brokers: Brokers) -> None:
    """Kafka ends the exchange of a user that is not there after the first message, and renewal by an unknown mechanism."""
    first = [handshake("SCRAM-SHA-256"), token(b"n,,n=stranger,r=abc")]
    assert said(brokers.kafka, first)[1][2]["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert said(brokers.ottla, first)[1][2]["auth_bytes"] == b"r=*,s=*,i=4096"
    renewal = [handshake("PLAIN"), token(PLAIN), handshake("GSSAPI")]
    assert said(brokers.kafka, renewal)[2] == "closed"
    assert said(brokers.ottla, renewal)[2][2]["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
