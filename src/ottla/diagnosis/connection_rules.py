"""Says why a client cannot connect: by what the client met, and by probes of names and ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple

from ottla.client.addresses import Address
from ottla.client.connection import open_connection
from ottla.client.errors import CannotConnect
from ottla.core.errors import ErrorCode, KafkaError
from ottla.diagnosis.rule import Finding, Reason, Subject

_LOOK_UP_S, _PROBE_S = 5.0, 3.0


class Symptom(NamedTuple):
    """A rule about a failed connection: words of the client's message, and what they mean."""

    name: str
    words: tuple[str, ...]  # one of them is in the message
    cause: str
    fix: str


SYMPTOMS = (
    Symptom(
        "HTTP port",
        ("HTTP server",),
        "{address} is an HTTP server, and no Kafka listener",
        "use the port of listeners=, 9092 by default",
    ),
    Symptom(
        "plaintext to a TLS port",
        ("requires TLS",),
        "{address} is a TLS listener, and the client does not use TLS",
        "ottla -X security.protocol=SSL (or SASL_SSL), with ssl.truststore.location",
    ),
    Symptom(
        "TLS to a plaintext port",
        ("does not use TLS",),
        "{address} does not use TLS, and the client does",
        "ottla -X security.protocol=PLAINTEXT (or SASL_PLAINTEXT), or use the port of a TLS listener",
    ),
    Symptom(
        "certificate names another host",
        ("match", "valid for"),
        "the certificate of {address} is of another host name: {why}",
        "connect by a name in the certificate, or issue one with this name (ottla certs)",
    ),
    Symptom(
        "certificate expired",
        ("certificate has expired",),
        "the certificate of {address} has expired",
        "replace the file of ssl.keystore.location: brokers read it again by themselves",
    ),
    Symptom(
        "certificate not trusted",
        ("not trusted", "self-signed", "unable to get local issuer"),
        "the certificate of {address} is not trusted by this client: {why}",
        "set ssl.truststore.location to the certificate of the authority that issued it",
    ),
    Symptom(
        "client certificate needed",
        ("client certificate", "certificate required"),
        "{address} requires a client certificate: {why}",
        "set ssl.keystore.location in the client",
    ),
    Symptom(
        "port closed",
        ("refused",),
        "nothing listens at {address}: the connection is refused",
        "start the broker, or correct the port: bootstrap.servers, and listeners= of the broker",
    ),
    Symptom(
        "no answer",
        ("no answer", "timed out", "unreachable"),
        "{address} does not answer: {why}",
        "check firewalls and routes between this machine and the broker",
    ),
    Symptom(
        "closed before an answer",
        ("closed",),
        "{address} closed the connection before it answered: it may require a sign-in or TLS",
        "set security.protocol and sasl.mechanism as the listener has them; ottla doctor on the broker names "
        "the reason",
    ),
    Symptom("no Kafka", ("does not speak Kafka",), "{address} does not speak Kafka's protocol", "check the port"),
)
"""In the order in which they are looked for."""


def of_refused_sign_in(error: KafkaError, address: str, *, signs_in: bool = True) -> Finding | None:
    """Return why a sign-in, or a request without one, was refused."""
    match error.code:
        case ErrorCode.NETWORK_EXCEPTION if not signs_in:
            return _finding(
                "sign-in needed",
                Reason(
                    f"{address} closes the connection of a client that has not signed in: its listener requires SASL",
                    "set security.protocol=SASL_PLAINTEXT or SASL_SSL, sasl.mechanism, sasl.username and sasl.password",
                ),
            )
        case ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return _finding(
                "wrong SASL mechanism",
                Reason(f"{address} does not have the client's SASL mechanism: {error.message}", "set sasl.mechanism"),
            )
        case ErrorCode.SASL_AUTHENTICATION_FAILED:
            return _finding(
                "wrong password",
                Reason(
                    f"the sign-in was refused by {address}: {error.message}",
                    "check sasl.username and sasl.password; ottla user list, as an administrator, names the users",
                ),
            )
        case ErrorCode.ILLEGAL_SASL_STATE:
            return _finding(
                "SASL where there is none",
                Reason(f"{address} has no SASL: {error.message}", "set security.protocol=PLAINTEXT or SSL"),
            )
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return _finding(
                "missing ACL",
                Reason(
                    f"this user may not describe the cluster: {error.message}",
                    "ottla acl create --allow-principal User:NAME --operation describe --cluster",
                ),
            )
    return None


async def why_not_connected(addresses: Sequence[Address], reason: str, *, uses_tls: bool = False) -> list[Finding]:
    """Return why none of the addresses can be used; first those whose names are unknown."""
    if uses_tls and "not trusted" not in reason and await _speaks_plaintext(addresses[0]):
        reason = "it does not use TLS"
    unknown = [address for address in addresses if not await _is_known(address.host)]
    findings = [
        _finding(
            "unknown host",
            Reason(
                f"no address is known for the host name {address.host} (DNS)",
                "correct bootstrap.servers or advertised.listeners, or add the name to DNS",
            ),
        )
        for address in unknown
    ]
    return findings or [of_reason(named(addresses), reason)]


def named(addresses: Sequence[Address]) -> str:
    """List addresses."""
    return ", ".join(map(str, addresses))


def of_reason(address: str, reason: str) -> Finding:
    """Return the finding for the message of a failed connection."""
    for symptom in SYMPTOMS:
        if any(word in reason for word in symptom.words):
            fields = {"address": address, "why": reason}
            return _finding(symptom.name, Reason(symptom.cause.format(**fields), symptom.fix))
    return _finding("cannot connect", Reason(f"cannot connect to {address}: {reason}", "check the log of the broker"))


def _finding(name: str, reason: Reason) -> Finding:
    return Finding(name, Subject.CONNECTION, "", *reason)


async def _speaks_plaintext(address: Address) -> bool:
    """Return whether a listener answers ApiVersions without TLS: every client may ask that first."""
    try:
        connection = await open_connection(address, client_id="ottla-doctor", timeout_s=_PROBE_S)
    except (CannotConnect, KafkaError):
        return False
    await connection.close()
    return True


async def _is_known(host: str) -> bool:
    try:
        async with asyncio.timeout(_LOOK_UP_S):
            await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    except TimeoutError:
        return False
    return True
