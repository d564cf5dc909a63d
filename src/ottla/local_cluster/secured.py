"""Secures a local cluster: TLS, sign-in with SCRAM and ACLs, with certificates and passwords of its own.

    certs/            an authority, and certificates of the brokers, a client and an administrator
    users             the password of the administrator
    broker-N.properties   what broker N is started with
    admin.properties  the settings of a client, which Kafka's own clients and tools read, too

Only the owner can read them. Certificates and password are made once; a directory that has them keeps them. Clients
sign in with SCRAM, brokers by their certificate, to ZooKeeper and, by a listener of their own, to each other: that
needs no user, of which there is none before the first broker serves.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ottla.core.clock import Clock
from ottla.core.runtime import random_bytes
from ottla.local_cluster.zookeeper_command import ZooKeeperTls
from ottla.security.config import AUTHORIZERS

ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_CLIENTS, _BROKERS = "SASL_SSL", "BROKERS"  # the listeners
_BROKER = "broker"  # the common name of its certificate
_MAPPING_RULES = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
_PASSWORD_BYTES = 24
_DAYS = 3650


class MissingLibrary(Exception):
    """A library that certificates need is not installed."""


@dataclass(frozen=True, slots=True)
class SecuredCluster:
    """The files of a secured cluster."""

    directory: Path
    password: str = field(repr=False)
    """Of the administrator."""

    def broker_file(self, node: int) -> Path:
        """Return the file of settings of a broker."""
        return self.directory / f"broker-{node}.properties"

    @property
    def admin_file(self) -> Path:
        """The file of settings of a client that signs in as the administrator."""
        return self.directory / "admin.properties"

    @property
    def zookeeper_tls(self) -> ZooKeeperTls:
        """The certificates of ZooKeeper. It has those of the brokers, which are its only clients."""
        certificates = self.directory / "certs"
        return ZooKeeperTls(certificates / f"{_BROKER}.pem", certificates / "ca.pem")

    def write_broker_settings(self, node: int, address: str) -> Path:
        """Write what a broker is started with; returns the file, which keeps passwords out of its command line."""
        host = address.rpartition(":")[0]
        identity, trusted = str(self.zookeeper_tls.identity), str(self.zookeeper_tls.trusted)
        settings = {
            "listeners": f"{_CLIENTS}://{address},{_BROKERS}://{host}:0",
            "listener.security.protocol.map": f"{_CLIENTS}:SASL_SSL,{_BROKERS}:SSL",
            "inter.broker.listener.name": _BROKERS,
            f"listener.name.{_BROKERS.lower()}.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": _MAPPING_RULES,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": identity,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trusted,
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.keystore.location": identity,
            "zookeeper.ssl.truststore.location": trusted,
            "zookeeper.set.acl": "true",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "ottla.initial.users.file": str(_users_file(self.directory)),
            "authorizer.class.name": AUTHORIZERS[0],
            "super.users": f"User:{ADMIN};User:{_BROKER}",
        }
        file = self.broker_file(node)
        _write(file, settings)
        return file

    def client_settings(self) -> dict[str, str]:
        """Return the settings of the administrator's client."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_LOGIN_MODULE} required username="{ADMIN}" password="{self.password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "certs" / "ca.pem"),
        }

    def write_client_settings(self, bootstrap: str) -> None:
        """Write the settings of the administrator's client."""
        _write(self.admin_file, {"bootstrap.servers": bootstrap, **self.client_settings()})


def secure(directory: Path, *, clock: Clock) -> SecuredCluster:
    """Make certificates and the password where there are none. Raises MissingLibrary, and OSError.

    The password is written last: certificates without it are of a start that was interrupted, and are made again.
    """
    file = _users_file(directory)
    if not file.exists():
        _make_certificates(directory / "certs", clock)
        _write(file, {ADMIN: base64.urlsafe_b64encode(random_bytes(_PASSWORD_BYTES)).decode()})
    return SecuredCluster(directory, file.read_text("utf-8").partition("=")[2].strip())


def hidden(settings: Mapping[str, str]) -> list[str]:
    """Return the lines of settings for a terminal, without passwords."""
    return [f"{name}={'[hidden]' if name == 'sasl.jaas.config' else value}" for name, value in settings.items()]


def _make_certificates(directory: Path, clock: Clock) -> None:
    try:
        from ottla.security.dev_certificates import LOCAL_HOSTS, DevCertificates, make_certificates
    except ModuleNotFoundError as error:
        raise MissingLibrary("certificates need cryptography: install ottla[security]") from error
    if not all(path.exists() for path in DevCertificates(directory).all):
        for path in DevCertificates(directory).all:
            path.unlink(missing_ok=True)
        make_certificates(directory, hosts=LOCAL_HOSTS, days=_DAYS, now_ms=clock.wall_ms())


def _users_file(directory: Path) -> Path:
    return directory / "users"


def _write(file: Path, settings: Mapping[str, str]) -> None:
    """Replace a file that only its owner can read."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        output.writelines(f"{name}={value}\n" for name, value in settings.items())
    fresh.replace(file)
