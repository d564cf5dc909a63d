import pytest

from ottla.broker import listeners as endpoints
from ottla.core.settings import InvalidSettings
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress


def test_a_loopback_listener_is_advertised_as_it_is_with_the_port_the_system_chose() -> None:
    opened = [ListenerAddress("PLAINTEXT", "127.0.0.1", 41235)]

    assert endpoints.to_advertise(NetConfig(), opened) == {"PLAINTEXT": ("127.0.0.1", 41235)}


def test_in_a_container_clients_get_the_address_of_advertised_listeners() -> None:
    config = NetConfig(advertised_listeners=("PLAINTEXT://broker.example:19092",))

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
    config = NetConfig(listeners=("PLAINTEXT://:9092", "CONTROLLER://:9093"), controller_listener_names=("CONTROLLER",))

    assert endpoints.to_listen_at(config) == [ListenerAddress("PLAINTEXT", "", 9092)]


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
        (("SSL://127.0.0.1:9092",), "SSL is not served"),
        (("PLAINTEXT://127.0.0.1",), "must be NAME://host:port"),
        (("PLAINTEXT://127.0.0.1:70000",), "at most 65535"),
        (("PLAINTEXT://a:1", "PLAINTEXT://b:2"), "a name of its own"),
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
