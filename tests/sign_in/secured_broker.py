"""Runs a broker, Ottla or a real Kafka, with TLS and each mechanism, and makes what clients sign in with, right or wrong."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jwt
import trustme

from tests.sign_in.cases import MUTUAL_TLS, SCRAMS, USER, Case
from tests.sign_in.programs import SignIn
from tests.support.certificates import Certificates
from tests.support.jvm import SHORT_RUN
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port
from tests.support.real_kafka import RealKafka
from tests.support.tokens import Issuer, rsa_key
from tests.support.wire_client import Wire

TOPIC: Final = "signed-in"
PASSWORD: Final = 'pass"word, with = and é'
LOGIN: Final = "org.apache.kafka.common.security"
EXPIRED: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
LISTENERS: Final = ("MUTUAL", "SIGNED", "OUTDATED")
"""Of clients: with certificates, with SASL, and with SASL and a certificate that has expired."""
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


class SecuredBroker:
    """The broker and its files."""

    def __init__(self, directory: Path, jars: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        """Take the directory, the jars of Kafka if it shall be a Kafka, and more settings of the broker."""
        self._more = settings or {}
        self._directory, self._jars = directory, jars
        self.certificates = Certificates(directory / "certificates")
        self._foreign = Certificates(directory / "foreign", authority=trustme.CA())
        self._issuer = Issuer(directory / "keys.json")
        self._ports = {listener: free_port() for listener in LISTENERS}
        self._open_port = free_port()
        self._broker = self._ottla() if jars is None else self._kafka(jars)

    def start(self) -> SecuredBroker:
        """Start it, with a user and a topic."""
        self._broker.start()
        if self._jars is not None:
            for mechanism in SCRAMS:  # one request may not change a user twice
                credential = f"{mechanism}=[iterations=4096,password={PASSWORD}]"
                of_user = ("--entity-type", "users", "--entity-name", USER)
                at = ("--bootstrap-server", self._broker.bootstrap)
                run_tool(self._jars, CONFIG_COMMAND, *at, *of_user, "--alter", "--add-config", credential)
        with Wire(self._open_port if self._jars is None else self._broker.port) as wire:
            new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
            assert wire.call("create_topics", 5, topics=[new], timeout=20_000)["topics"][0]["error_code"] == 0
        return self

    def stop(self) -> None:
        """Stop it; its log must hold no traceback."""
        self._broker.stop()
        if isinstance(self._broker, OttlaProcess):
            self._broker.assert_log_is_clean()

    def sign_in(self, case: Case) -> SignIn:
        """Return what a client is given."""
        host, listener = "localhost", "MUTUAL" if case.mechanism == MUTUAL_TLS else "SIGNED"
        trusted, certificate, key, token = self.certificates.trusted, "", "", ""
        if case.mechanism == MUTUAL_TLS and case.wrong != "no certificate":
            certificate, key = self._certificate(case.wrong)
        if case.mechanism == "OAUTHBEARER":
            token = self._token(case.wrong)
        match case.wrong:
            case "another host name":
                host = "127.0.0.1"
            case "the broker's certificate expired":
                listener = "OUTDATED"
            case "the broker's certificate is foreign":
                trusted = self._foreign.trusted
        has_password = case.mechanism in (*SCRAMS, "PLAIN")
        return {
            "name": case.name,
            "is_refused": bool(case.wrong),
            "bootstrap": f"{host}:{self._ports[listener]}",
            "topic": TOPIC,
            "mechanism": case.mechanism,
            "user": ("stranger" if case.wrong == "an unknown user" else USER) if has_password else "",
            "password": ("wrong" if case.wrong == "a wrong password" else PASSWORD) if has_password else "",
            "token": token,
            "trusted": str(trusted),
            "certificate": certificate,
            "key": key,
        }

    def _certificate(self, wrong: str) -> tuple[str, str]:
        """Write a client's certificate and its key to files; their names."""
        issuer = self._foreign if wrong == "a foreign certificate" else self.certificates
        expired = EXPIRED if wrong == "an expired certificate" else None
        issued = issuer.issue("client@example.org", common_name=USER, not_after=expired)
        directory = self.certificates.directory
        certificate, key = (directory / f"{wrong.replace(' ', '-') or 'client'}.{kind}" for kind in ("pem", "key"))
        certificate.write_text(issuer.chain(issued))
        key.write_text(issuer.key(issued))
        return str(certificate), str(key)

    def _token(self, wrong: str) -> str:
        match wrong:
            case "an expired token":
                return self._issuer.token(iat=900, exp=1000)
            case "an unsigned token":
                return jwt.encode(self._issuer.claims(), "", algorithm="none", headers={"kid": "rsa"})
            case "a foreign token":
                return self._issuer.token(key=rsa_key("foreign"))
            case "a token for another audience":
                return self._issuer.token(aud="another")
            case "no JWT":
                return "not-a-token"
        return self._issuer.token()

    def _settings(self) -> dict[str, str]:
        """What both have: the listeners, and what clients sign in with."""
        plain = f"{LOGIN}.plain.PlainLoginModule required user_{USER}={quoted(PASSWORD)};"
        outdated = self.certificates.store("outdated.pem", self.certificates.issue("localhost", not_after=EXPIRED))
        return {
            **self._issuer.settings,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "MUTUAL:SSL,SIGNED:SASL_SSL,OUTDATED:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.store("broker.pem", self.certificates.issue("localhost"))),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.trusted),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.outdated.ssl.keystore.type": "PEM",
            "listener.name.outdated.ssl.keystore.location": str(outdated),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            **{f"listener.name.{name}.plain.sasl.jaas.config": plain for name in ("signed", "outdated")},
            "connection.failed.authentication.delay.ms": "10",
            **self._more,
        }

    def _listeners(self, port: int, host: str) -> str:
        return ",".join(f"{name}://{host}:{at}" for name, at in {"PLAINTEXT": port, **self._ports}.items())

    def _ottla(self) -> OttlaProcess:
        users = self._directory / "users"
        users.write_text(f"{USER}={PASSWORD}\n", encoding="utf-8")
        settings = {
            **self._settings(),
            "listeners": self._listeners(self._open_port, "127.0.0.1"),
            "advertised.listeners": self._listeners(self._open_port, "localhost"),
            "ottla.initial.users.file": str(users),
        }
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return OttlaProcess(self._directory / "ottla", options=options)

    def _kafka(self, jars: Path) -> RealKafka:
        url = self._issuer.file.as_uri()
        kafka = RealKafka(
            jars, self._directory / "kafka", jvm_options=("-Xmx512M", *SHORT_RUN, f"-D{ALLOWED_URLS}={url}")
        )
        settings = {
            **self._settings(),
            "listeners": f"{self._listeners(kafka.port, '127.0.0.1')},CONTROLLER://127.0.0.1:{kafka.controller_port}",
            "advertised.listeners": self._listeners(kafka.port, "localhost"),
        }
        for name in ("signed", "outdated"):
            of_listener = f"listener.name.{name}"
            for scram in SCRAMS:
                settings[f"{of_listener}.{scram.lower()}.sasl.jaas.config"] = (
                    f"{LOGIN}.scram.ScramLoginModule required;"
                )
            bearer = f"{of_listener}.oauthbearer.sasl"
            settings[f"{bearer}.jaas.config"] = f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;"
            settings[f"{bearer}.server.callback.handler.class"] = (
                f"{LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            )
        with kafka.properties.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={in_properties(value)}\n" for name, value in settings.items())
        return kafka


def quoted(text: str) -> str:
    """Return the value of an option of JAAS."""
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def in_properties(value: str) -> str:
    """Escape a value for a file of Java's properties."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in escaped)
