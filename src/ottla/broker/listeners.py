"""Parses `listeners` and `advertised.listeners` as Kafka does: where to listen, how, and what to report to clients."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence

from ottla.core.security_protocols import PROTOCOL_NAMES, SecurityProtocol
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress

_ENDPOINT = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[0-9A-Fa-f:.]*\]|[^:/\[\]]*):(?P<port>\d+)")
PORT_MAX = 65535
LOCAL = "127.0.0.1"
ALL_OF_IPV4 = "0.0.0.0"  # noqa: S104 - compared; the other wildcards mean both families


def parse_endpoint(text: str, key: str) -> ListenerAddress:
    """Parse `NAME://host:port`. Raises InvalidSettings saying what is wrong with it."""
    parts = _ENDPOINT.fullmatch(text)
    if not parts:
        raise InvalidSettings(
            [SettingProblem(key, text, "must be NAME://host:port, for instance PLAINTEXT://127.0.0.1:9092")]
        )
    name: str = parts["name"]
    host: str = parts["host"]
    port = int(parts["port"])
    if port > PORT_MAX:
        raise InvalidSettings([SettingProblem(key, text, f"the port must be at most {PORT_MAX}")])
    return ListenerAddress(name.upper(), host.strip("[]"), port)


def to_listen_at(config: NetConfig) -> list[ListenerAddress]:
    """Return the listeners to open.

    Raises InvalidSettings for two of one name, one without a protocol, and one that anybody on the network could use.
    """
    endpoints = [parse_endpoint(text, "listeners") for text in config.listeners]
    endpoints = [address for address in endpoints if address.listener not in config.controller_listener_names]
    protocols = security_protocols(config)
    problems = []
    names = [address.listener for address in endpoints]
    for address in endpoints:
        if address.listener not in protocols:
            why = "listener.security.protocol.map has no security protocol for this name"
            problems.append(SettingProblem("listeners", str(address), why))
        elif protocols[address.listener] is SecurityProtocol.PLAINTEXT and not config.allow_insecure_listeners:
            problems += _insecure(address)
        if names.count(address.listener) > 1:
            problems.append(SettingProblem("listeners", str(address), "each listener needs a name of its own"))
    if not endpoints:
        problems.append(SettingProblem("listeners", ",".join(config.listeners), "must name at least one"))
    if problems:
        raise InvalidSettings(problems)
    return endpoints


def security_protocols(config: NetConfig) -> dict[str, SecurityProtocol]:
    """Return the security protocol by the name of a listener. Raises InvalidSettings.

    The name of a protocol stands for it if the map has no other, so that a map needs only names of one's own.
    """
    found = {protocol.name: protocol for protocol in SecurityProtocol}
    for entry in config.listener_security_protocol_map:
        name, colon, protocol = entry.partition(":")
        if not (name and colon and protocol.upper() in PROTOCOL_NAMES):
            problem = f"must be NAME:PROTOCOL with one of {', '.join(PROTOCOL_NAMES)}"
            raise InvalidSettings([SettingProblem("listener.security.protocol.map", entry, problem)])
        found[name.upper()] = SecurityProtocol[protocol.upper()]
    return found


def any_uses_sasl(config: NetConfig) -> bool:
    """Return whether clients of some listener sign in by SASL. Raises InvalidSettings."""
    protocols = security_protocols(config)
    return any(protocols[endpoint.listener].uses_sasl for endpoint in to_listen_at(config))


def _insecure(endpoint: ListenerAddress) -> list[SettingProblem]:
    """Return the problem of a listener without TLS and SASL, unless only this machine can reach it."""
    if is_loopback(endpoint.host):
        return []
    why = (
        "everybody who reaches this address could read and write everything. Map its name to SSL, SASL_SSL or "
        "SASL_PLAINTEXT in listener.security.protocol.map, or listen at 127.0.0.1, or insist with "
        "ottla.allow.insecure.listeners=true (--insecure-listeners)"
    )
    return [SettingProblem("listeners", str(endpoint), why)]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host; a name if all its addresses are such."""
    if _is_wildcard(host):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass  # a name
    try:
        places = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(place[4][0]).is_loopback for place in places)
    except (OSError, ValueError, UnicodeError):
        return False  # a name that is not known here cannot be bound either


def to_advertise(config: NetConfig, opened: list[ListenerAddress]) -> dict[str, tuple[str, int]]:
    """Return the address in Metadata responses by listener; a wildcard is replaced by a reachable address."""
    given = check_advertised(config)
    advertised = {}
    for each in opened:
        place = given.get(each.listener)
        advertised[each.listener] = (
            (_reachable(each.host), each.port) if place is None else (place.host, place.port or each.port)
        )
    return advertised


def check_advertised(config: NetConfig) -> dict[str, ListenerAddress]:
    """Return the addresses of `advertised.listeners` by listener. Raises InvalidSettings with all that is wrong."""
    names = [each.listener for each in to_listen_at(config)]
    found: dict[str, ListenerAddress] = {}
    problems = []
    for text in config.advertised_listeners:
        each = parse_endpoint(text, "advertised.listeners")
        if each.listener in config.controller_listener_names:
            continue  # of a KRaft quorum: it is not opened either
        if each.listener not in names:
            problem = f"there is no listener of that name; there is {', '.join(names)}"
            problems.append(SettingProblem("advertised.listeners", text, problem))
        elif _is_wildcard(each.host):
            problem = "clients cannot connect to a wildcard address: name the host they see"
            problems.append(SettingProblem("advertised.listeners", text, problem))
        found[each.listener] = each
    if problems:
        raise InvalidSettings(problems)
    return found


def inter_broker_listener(config: NetConfig, *, is_alone: bool = False) -> str:
    """Return the name of the listener for connections between brokers. Raises InvalidSettings if there is none.

    One broker alone needs none but for its probe, whatever its settings.
    """
    try:
        return _inter_broker_listener(config)
    except InvalidSettings:
        if not is_alone:
            raise
        return config.inter_broker_listener_name


def _inter_broker_listener(config: NetConfig) -> str:
    names = [each.listener for each in to_listen_at(config)]
    key, given = "inter.broker.listener.name", config.inter_broker_listener_name.upper()
    if given and config.inter_broker_protocol:
        problem = "contradicts security.inter.broker.protocol; set one of them"
        raise InvalidSettings([SettingProblem(key, given, problem)])
    if config.inter_broker_protocol:
        key, given = "security.inter.broker.protocol", config.inter_broker_protocol
    if given and given not in names:
        raise InvalidSettings([SettingProblem(key, given, f"there is no such listener; there is {', '.join(names)}")])
    usual = SecurityProtocol.PLAINTEXT.name
    return given or (usual if usual in names else names[0])


def protected_listener(config: NetConfig) -> str:
    """Return the listener between brokers where clients have another one; empty if they share it."""
    if len({each.listener for each in to_listen_at(config)}) < 2:
        return ""
    try:
        return inter_broker_listener(config)
    except InvalidSettings:  # of a broker alone, whatever it names
        return ""


def _reachable(host: str) -> str:
    """Return a host that clients can reach."""
    if not _is_wildcard(host):
        return host
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return LOCAL
    addresses = [str(place[0]) for _, _, _, _, place in found]
    return choose_host(addresses, name, socket.getfqdn, is_ipv4_only=host == ALL_OF_IPV4)


def choose_host(
    addresses: Sequence[str], name: str, full_name: Callable[[str], str], *, is_ipv4_only: bool = False
) -> str:
    """Choose what to advertise of this machine: an address, IPv4 first, or else its name.

    The name is for machines on which it stands for a loopback address, as on Debian: elsewhere it stands for another.
    Never a name with an address of a family that the listener does not have (docs/protocol-pitfalls.md, 15).

    >>> choose_host(["127.0.1.1"], "b1", lambda name: f"{name}.example")
    'b1.example'
    >>> choose_host(["fe80::1", "2001:db8::7", "192.0.2.7"], "b1", str)
    '192.0.2.7'
    """
    usable = [each for each in map(ipaddress.ip_address, addresses) if each.version == 4 or not is_ipv4_only]
    public = [each for each in usable if not (each.is_loopback or each.is_link_local)]
    if public:
        return str(min(public, key=lambda each: each.version))
    if not usable or len(usable) < len(addresses):
        return LOCAL
    full = full_name(name)
    return full if full.partition(".")[0] == name.partition(".")[0] else name


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name the operator chose


def given_port(port: int) -> dict[str, str]:
    """Return the settings that `--port` stands for."""
    return {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
