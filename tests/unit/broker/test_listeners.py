from typing import Any

import pytest

from ottla.broker import listeners as endpoints
from ottla.core.security_protocols import SecurityProtocol
from ottla.core.settings import InvalidSettings
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress


def test_a_loopback_listener_is_advertised_as_it_is_with_the_port_the_system_chose() -> None:
    opened = [ListenerAddress("PLAINTEXT", "127.0.0.1", 41235)]

    assert endpoints.to_advertise(NetConfig(), opened) == {"PLAINTEXT": ("127.0.0.1", 41235)}


def test_in_a_container_clients_get_the_address_of_advertised_listeners() -> None:
    config = NetConfig(
        listeners=("PLAINTEXT://:9092",),
        advertised_listeners=("PLAINTEXT://broker.example:19092",),
        allow_insecure_listeners=True,
    )

    assert endpoints.to_advertise(config, [ListenerAddress("PLAINTEXT", "", 9092)]) == {
        "PLAINTEXT": ("broker.example", 19092)
    }


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_wildcard_address_is_never_advertised(host: str) -> None:
    ((_, (advertised, port)),) = endpoints.to_advertise(NetConfig(), [ListenerAddress("PLAINTEXT", host, 9092)]).items()

    assert advertised not in {"", "0.0.0.0", "::"}
    assert port == 9092
    with pytest.raises(InvalidSettings, match="wildcard"):
        endpoints.to_advertise(
            NetConfig(advertised_listeners=(f"PLAINTEXT://{'[::]' if host == '::' else host}:1",)),
            [ListenerAddress("PLAINTEXT", host, 9092)],
        )


def test_the_controller_listener_of_a_kraft_file_is_not_opened() -> None:
    config = NetConfig(listeners=("SSL://:9092", "CONTROLLER://:9093"), controller_listener_names=("CONTROLLER",))

    assert endpoints.to_listen_at(config) == [ListenerAddress("SSL", "", 9092)]


def test_the_controller_listener_of_a_kraft_file_is_not_advertised() -> None:
    config = NetConfig(
        advertised_listeners=("PLAINTEXT://localhost:9092", "CONTROLLER://localhost:9093"),
        controller_listener_names=("CONTROLLER",),
    )

    assert endpoints.to_advertise(config, [ListenerAddress("PLAINTEXT", "", 9092)]) == {
        "PLAINTEXT": ("localhost", 9092)
    }


def test_a_name_of_ones_own_stands_for_its_protocol() -> None:
    config = NetConfig(
        listeners=("INSIDE://[::1]:1", "OUTSIDE://127.0.0.1:2"),
        listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT"),
    )

    assert [str(each) for each in endpoints.to_listen_at(config)] == ["INSIDE://[::1]:1", "OUTSIDE://127.0.0.1:2"]


@pytest.mark.parametrize(
    ("listeners", "why"),
    [
        (("INSIDE://127.0.0.1:9092",), "listener.security.protocol.map has no security protocol for this name"),
        (("PLAINTEXT://127.0.0.1",), "must be NAME://host:port"),
        (("PLAINTEXT://127.0.0.1:70000",), "at most 65535"),
        (("SSL://a:1", "SSL://b:2"), "a name of its own"),
    ],
)
def test_a_listener_that_cannot_be_served_is_a_wrong_setting(listeners: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        endpoints.to_listen_at(NetConfig(listeners=listeners))


def test_an_advertised_listener_needs_a_listener_of_its_name() -> None:
    config = NetConfig(advertised_listeners=("OUTSIDE://broker.example:1",))

    with pytest.raises(InvalidSettings, match="no listener of that name; there is PLAINTEXT"):
        endpoints.to_advertise(config, [ListenerAddress("PLAINTEXT", "127.0.0.1", 9092)])


@pytest.mark.parametrize(
    ("addresses", "is_ipv4_only", "advertised"),
    [
        (["192.0.2.7", "2001:db8::7"], False, "192.0.2.7"),
        (["fe80::1%eth0", "2001:db8::7"], False, "2001:db8::7"),
        (["127.0.1.1", "192.0.2.7"], False, "192.0.2.7"),
        (["127.0.1.1"], False, "b1.example"),
        (["127.0.1.1"], True, "b1.example"),
        (["127.0.1.1", "::1"], False, "b1.example"),
        (["127.0.1.1", "::1"], True, "127.0.0.1"),
        (["2001:db8::7"], True, "127.0.0.1"),
    ],
)
def test_a_machine_is_advertised_by_an_address_or_by_the_name_of_a_loopback_address(
    addresses: list[str], advertised: str, *, is_ipv4_only: bool
) -> None:
    found = endpoints.choose_host(addresses, "b1", lambda name: f"{name}.example", is_ipv4_only=is_ipv4_only)

    assert found == advertised


def test_another_machines_name_is_not_advertised() -> None:
    assert endpoints.choose_host(["127.0.0.1"], "b1", lambda _: "localhost") == "b1"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "192.0.2.7", "no-such-host.invalid"])
def test_a_listener_that_anybody_on_the_network_could_use_is_refused_with_what_would_change_it(host: str) -> None:
    listeners = (f"PLAINTEXT://{host}:9092",)

    with pytest.raises(InvalidSettings, match=r"SASL_SSL.*127\.0\.0\.1.*ottla\.allow\.insecure\.listeners=true"):
        endpoints.to_listen_at(NetConfig(listeners=listeners))
    assert endpoints.to_listen_at(NetConfig(listeners=listeners, allow_insecure_listeners=True))


@pytest.mark.parametrize(
    "text", ["PLAINTEXT://127.0.0.2:1", "PLAINTEXT://[::1]:1", "PLAINTEXT://localhost:1", "SSL://:1"]
)
def test_a_listener_on_loopback_or_with_tls_or_sasl_is_opened(text: str) -> None:
    assert endpoints.to_listen_at(NetConfig(listeners=(text,)))


def test_the_map_gives_each_listener_its_protocol_and_a_protocols_name_stands_for_itself() -> None:
    config = NetConfig(listener_security_protocol_map=("outside:sasl_ssl",))

    protocols = endpoints.security_protocols(config)

    assert protocols["OUTSIDE"] is SecurityProtocol.SASL_SSL
    assert protocols["SSL"] is SecurityProtocol.SSL
    with pytest.raises(InvalidSettings, match="must be NAME:PROTOCOL with one of PLAINTEXT, SSL"):
        endpoints.security_protocols(NetConfig(listener_security_protocol_map=("A:TLS",)))


@pytest.mark.parametrize(
    ("given", "listener"),
    [
        ({}, "PLAINTEXT"),
        ({"inter_broker_listener_name": "inside"}, "INSIDE"),
        ({"inter_broker_protocol": "SSL"}, "SSL"),
        ({"listeners": ("INSIDE://127.0.0.1:1", "SSL://127.0.0.1:3")}, "INSIDE"),
    ],
)
def test_brokers_use_the_listener_that_is_named_or_of_the_protocol_between_brokers(
    given: dict[str, Any], listener: str
) -> None:
    listeners = ("INSIDE://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2", "SSL://127.0.0.1:3")
    config = NetConfig(**{"listeners": listeners, "listener_security_protocol_map": ("INSIDE:SSL",), **given})

    assert endpoints.inter_broker_listener(config) == listener


def test_the_listener_and_the_protocol_between_brokers_contradict_each_other() -> None:
    both = NetConfig(inter_broker_listener_name="PLAINTEXT", inter_broker_protocol="PLAINTEXT")
    absent = NetConfig(inter_broker_protocol="SSL")

    with pytest.raises(InvalidSettings, match=r"contradicts security\.inter\.broker\.protocol"):
        endpoints.inter_broker_listener(both)
    with pytest.raises(InvalidSettings, match="no such listener; there is PLAINTEXT"):
        endpoints.inter_broker_listener(absent)
