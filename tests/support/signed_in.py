"""Clients that sign in: connections of `Wire`, and the settings of librdkafka."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from scramp import ScramClient

from tests.support.up_process import UpProcess
from tests.support.wire_client import Wire


class SignInRefused(Exception):
    """The broker has refused the credentials."""


class SignedInWire(Wire):
    """A connection of a user. Raises SignInRefused."""

    def __init__(
        self,
        port: int,
        user: str,
        password: str,
        *,
        mechanism: str = "PLAIN",
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(port, timeout_s=timeout_s, client_id=user)
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            assert not self.call("sasl_handshake", 1, mechanism=mechanism)["error_code"]
            if mechanism == "PLAIN":
                self._token(f"\0{user}\0{password}".encode())
                return
            client = ScramClient([mechanism], user, password)
            client.set_server_first(self._token(client.get_client_first().encode()).decode())
            client.set_server_final(self._token(client.get_client_final().encode()).decode())
        except BaseException:
            self.close()
            raise

    def _token(self, token: bytes) -> bytes:
        answer = self.call("sasl_authenticate", 1, auth_bytes=token)
        if answer["error_code"]:
            raise SignInRefused(answer["error_message"])
        return bytes(answer["auth_bytes"])


@dataclass(frozen=True)
class ClientSecurity:
    """How clients of a cluster connect."""

    properties: dict[str, str] = field(default_factory=dict)
    """Of librdkafka."""

    def wire(self, port: int, *, timeout_s: float = 30.0) -> Wire:
        """Connect to one broker."""
        return Wire(port, timeout_s=timeout_s)


PLAINTEXT = ClientSecurity()


@dataclass(frozen=True)
class ScramOverTls(ClientSecurity):
    """A user with a password."""

    def wire(self, port: int, *, timeout_s: float = 30.0) -> Wire:
        settings = self.properties
        return SignedInWire(
            port,
            settings["sasl.username"],
            settings["sasl.password"],
            mechanism=settings["sasl.mechanism"],
            tls=ssl.create_default_context(cafile=settings["ssl.ca.location"]),
            timeout_s=timeout_s,
        )


def as_user(cluster: UpProcess, user: str, password: str = "") -> ClientSecurity:
    """Return how a user of `ottla up --secure` connects; without a password the administrator."""
    if not cluster.is_secured:
        return PLAINTEXT
    password = password or (cluster.directory / "users").read_text().partition("=")[2].strip()
    return ScramOverTls(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(cluster.directory / "certs" / "ca.pem"),
        }
    )
