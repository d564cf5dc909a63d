"""Parses `listeners` and `advertised.listeners` as Kafka does: where to listen and what to report to clients."""

from __future__ import annotations

import ipaddress
import re
import socket

from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress

_ENDPOINT = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[0-9A-Fa-f:.]*\]|[^:/\[\]]*):(?P<port>\d+)")
PORT_MAX = 65535


def parse_endpoint(text: str, key: str) -> ListenerAddress:
    """Parse `NAME://host:port`. Raises InvalidSettings saying what is wrong with it."""
    found = _ENDPOINT.fullmatch(text)
    if not found:
        raise InvalidSettings(
            [SettingProblem(key, text, "must be NAME://host:port, for instance PLAINTEXT://127.0.0.1:9092")]
        )
    port = int(found["port"])
    if port > PORT_MAX:
        raise InvalidSettings([SettingProblem(key, text, f"the port must be at most {PORT_MAX}")])
    return ListenerAddress(found["name"].upper(), found["host"].strip("[]"), port)


def to_listen_at(config: NetConfig) -> list[ListenerAddress]:
    """Return the listeners to open. Raises InvalidSettings for two of one name, or a protocol that is not served."""
    endpoints = [parse_endpoint(text, "listeners") for text in config.listeners]
    endpoints = [each for each in endpoints if each.listener not in config.controller_listener_names]
    protocols = dict(entry.split(":", 1) for entry in config.listener_security_protocol_map if ":" in entry)
    problems = []
    names = [each.listener for each in endpoints]
    for each in endpoints:
        protocol = protocols.get(each.listener, each.listener)
        if protocol != "PLAINTEXT":
            problems.append(
                SettingProblem("listeners", str(each), f"{protocol} is not served: only PLAINTEXT is, so far")
            )
        if names.count(each.listener) > 1:
            problems.append(SettingProblem("listeners", str(each), "each listener needs a name of its own"))
    if not endpoints:
        problems.append(SettingProblem("listeners", ",".join(config.listeners), "must name at least one"))
    if problems:
        raise InvalidSettings(problems)
    return endpoints


def to_advertise(config: NetConfig, opened: list[ListenerAddress]) -> dict[str, tuple[str, int]]:
    """Return the address in Metadata responses by listener; a wildcard is replaced by a reachable address."""
    advertised = {each.listener: (_reachable(each.host), each.port) for each in opened}
    for text in config.advertised_listeners:
        each = parse_endpoint(text, "advertised.listeners")
        if each.listener in config.controller_listener_names:
            continue  # of a KRaft quorum: it is not opened either
        problem = ""
        if each.listener not in advertised:
            problem = f"there is no listener of that name; there is {', '.join(advertised)}"
        elif _is_wildcard(each.host):
            problem = "clients cannot connect to a wildcard address: name the host they see"
        if problem:
            raise InvalidSettings([SettingProblem("advertised.listeners", text, problem)])
        advertised[each.listener] = (each.host, each.port or advertised[each.listener][1])
    return advertised


def inter_broker_listener(config: NetConfig) -> str:
    """Return the name of the listener for connections between brokers. Raises InvalidSettings if there is none."""
    names = [each.listener for each in to_listen_at(config)]
    given = config.inter_broker_listener_name.upper()
    if given and given not in names:
        raise InvalidSettings(
            [
                SettingProblem(
                    "inter.broker.listener.name", given, f"there is no such listener; there is {', '.join(names)}"
                )
            ]
        )
    return given or names[0]


def _reachable(host: str) -> str:
    """Return a host that clients can reach.

    Never a name that resolves to an address family we do not listen on (docs/protocol-pitfalls.md, 15).
    """
    if not _is_wildcard(host):
        return host
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return "127.0.0.1"
    return str(address)


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name the operator chose


def given_port(port: int) -> dict[str, str]:
    """Return the settings that `--port` stands for."""
    return {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
