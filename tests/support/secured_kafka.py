"""Runs a real Apache Kafka with TLS and SASL: certificates made for the run, users, one listener per mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.processes import free_port
from tests.support.real_kafka import RealKafka

USER, PASSWORD = "alice", 'pass"word, with = and é'
_JAAS = "org.apache.kafka.common.security.{kind}Module required {users};"
STORE_PASSWORD = "store-secret"


@dataclass(frozen=True, slots=True)
class Papers:
    """Files of a certificate authority and of a client it knows."""

    ca: Path
    other_ca: Path
    client_chain: Path
    client_key: Path
    client_p12: Path


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """The broker and its listeners, each `127.0.0.1:port`."""

    kafka: RealKafka
    papers: Papers
    ports: dict[str, int]

    def bootstrap(self, listener: str) -> str:
        """host:port of SSL, MTLS, SASL_SSL or SASL_PLAINTEXT."""
        return f"localhost:{self.ports[listener]}"


def start_secured_kafka(jars: Path, directory: Path) -> SecuredKafka:
    """Start one; the caller stops its `kafka`."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    papers = _papers(authority, directory)
    store = directory / "broker.pem"
    issued = authority.issue_cert("localhost")  # and not its address: names are checked
    store.write_bytes(_pkcs8(issued) + b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    ports = {name: free_port() for name in ("SSL", "MTLS", "SASL_SSL", "SASL_PLAINTEXT")}
    kafka = RealKafka(jars, directory / "kafka")
    listeners = ",".join(
        (f"PLAINTEXT://127.0.0.1:{kafka.port}", *(f"{name}://localhost:{port}" for name, port in ports.items()))
    )
    protocols = (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MTLS:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
    )
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{kafka.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(papers.ca),
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    escaped = PASSWORD.replace('"', '\\\\"')  # one backslash for properties files, one for JAAS
    escaped = "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in escaped)
    plain = _JAAS.format(kind="plain.PlainLogin", users=f'user_{USER}="{escaped}"')
    for listener in ("sasl_ssl", "sasl_plaintext"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for size in (256, 512):
            scram = f"listener.name.{listener}.scram-sha-{size}.sasl.jaas.config"
            settings[scram] = _JAAS.format(kind="scram.ScramLogin", users="").replace(" ;", ";")
        settings[f"listener.name.{listener}.connections.max.reauth.ms"] = "600000"
    with kafka.properties.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    kafka.start()
    try:
        _add_users(jars, kafka.bootstrap)
    except BaseException:
        kafka.stop()
        raise
    return SecuredKafka(kafka, papers, ports)


def _add_users(jars: Path, bootstrap: str) -> None:
    for size in (256, 512):  # one request may not change a user twice
        run_tool(
            jars,
            CONFIG_COMMAND,
            "--bootstrap-server",
            bootstrap,
            "--alter",
            "--add-config",
            f"SCRAM-SHA-{size}=[iterations=4096,password=scram-{size}]",
            "--entity-type",
            "users",
            "--entity-name",
            USER,
        )


def _papers(authority: trustme.CA, directory: Path) -> Papers:
    papers = Papers(*(directory / name for name in ("ca.pem", "other.pem", "client.pem", "client.key", "client.p12")))
    papers.ca.write_bytes(authority.cert_pem.bytes())
    papers.other_ca.write_bytes(trustme.CA().cert_pem.bytes())
    client = authority.issue_cert("client@example.org")
    papers.client_chain.write_bytes(b"".join(pem.bytes() for pem in client.cert_chain_pems))
    papers.client_key.write_bytes(_pkcs8(client))
    key = serialization.load_pem_private_key(papers.client_key.read_bytes(), None)
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(client.cert_chain_pems[0].bytes())
    papers.client_p12.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            key,  # type: ignore[arg-type]
            certificate,
            None,
            serialization.BestAvailableEncryption(STORE_PASSWORD.encode()),
        )
    )
    return papers


def _pkcs8(issued: trustme.LeafCert) -> bytes:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
