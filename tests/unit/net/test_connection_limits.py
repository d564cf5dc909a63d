"""Limits of connections: of the broker, of a listener, of an address, and how fast they may begin."""

from __future__ import annotations

import pytest

from ottla.core.settings import INT_MAX
from ottla.net.config import NetConfig
from ottla.net.connection_limits import ADDRESSES_MAX, ADMITTED, ConnectionLimits, parse_counts

HOST, OTHER = "10.0.0.1", "10.0.0.2"


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Client:
    def __init__(self, listener: str, last_active: float) -> None:
        self.listener, self.last_active, self.host = listener, last_active, HOST


def test_connections_above_the_limit_of_the_broker_are_refused_and_counted_until_they_are_closed() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=2, connections_per_ip_max=9), now=Time())
    assert [limits.open("A", HOST), limits.open("A", HOST)] == [ADMITTED, ADMITTED]
    assert limits.open("A", HOST).refusal == "max.connections=2 reached"
    limits.close("A", HOST)
    limits.close("A", HOST)
    assert limits.open("A", OTHER) == ADMITTED


def test_a_listener_has_a_limit_of_its_own() -> None:
    own = {"A": NetConfig(connections_max=1)}
    limits = ConnectionLimits(NetConfig(), lambda name: own.get(name, NetConfig()), now=Time())
    assert limits.open("A", HOST) == ADMITTED
    assert limits.open("A", OTHER).refusal == "max.connections=1 of listener A reached"
    assert limits.open("B", HOST) == ADMITTED


def test_an_address_has_a_limit_and_single_ones_another() -> None:
    config = NetConfig(connections_per_ip_max=1, connections_per_ip_overrides=f"{OTHER}:2")
    limits = ConnectionLimits(config, now=Time())
    assert limits.open("A", HOST) == ADMITTED
    assert limits.open("A", HOST).refusal == f"max.connections.per.ip=1 reached by {HOST}"
    assert [limits.open("A", OTHER), limits.open("A", OTHER)] == [ADMITTED, ADMITTED]
    assert limits.open("A", OTHER).refusal


def test_without_a_limit_an_address_may_have_half_of_all_and_this_host_all() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=6), now=Time())
    assert [bool(limits.open("A", HOST).refusal) for _ in range(4)] == [False, False, False, True]
    limits = ConnectionLimits(NetConfig(connections_max=6), now=Time())
    assert not any(limits.open("A", "127.0.0.1").refusal for _ in range(6))


def test_the_listener_between_brokers_takes_the_place_of_the_client_that_was_quiet_for_longest() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=2, connections_per_ip_max=9), now=Time(), protected="INTERNAL")
    clients = [Client("CLIENTS", 5.0), Client("CLIENTS", 3.0), Client("INTERNAL", 1.0)]
    for client in clients:
        assert limits.open(client.listener, client.host) == ADMITTED
    assert limits.excess == 1
    assert limits.least_recently_used(clients, 1) == [clients[1]]
    assert limits.open("CLIENTS", OTHER).refusal


def test_a_lower_limit_counts_at_once() -> None:
    limits = ConnectionLimits(NetConfig(), now=Time())
    for _ in range(5):
        limits.open("A", HOST)
    limits.configure(NetConfig(connections_max=3))
    assert limits.excess == 2


@pytest.mark.parametrize("of_listener", [False, True])
def test_connections_that_come_too_fast_wait_for_their_turn(of_listener: bool) -> None:
    time, limited = Time(), NetConfig(connection_rate_max=10)
    if of_listener:
        limits = ConnectionLimits(NetConfig(), lambda _: limited, now=time)
    else:
        limits = ConnectionLimits(limited, lambda _: NetConfig(), now=time)
    admissions = [limits.open("A", "127.0.0.1") for _ in range(300)]
    waits = [each.wait_s for each in admissions if not each.refusal]
    assert waits[:100] == [0.0] * 100  # what ten seconds allow
    assert waits[100:] == pytest.approx([(number + 1) / 10 for number in range(len(waits) - 100)])
    assert waits[-1] == pytest.approx(11)  # a client would wait no longer
    assert {each.refusal for each in admissions[len(waits) :]} == {
        "too many new connections: max.connection.creation.rate"
    }


def test_connections_between_brokers_do_not_count_for_the_rate_of_the_broker() -> None:
    limits = ConnectionLimits(NetConfig(connection_rate_max=1), lambda _: NetConfig(), now=Time(), protected="INTERNAL")
    assert all(limits.open("INTERNAL", HOST) == ADMITTED for _ in range(100))
    assert limits.open("A", HOST) == ADMITTED


def test_a_quota_of_an_address_holds_its_connections_and_closes_them() -> None:
    time = Time()
    limits = ConnectionLimits(NetConfig(), now=time)
    limits.use_rates({"::ffff:10.0.0.1": 2.0}, None)
    admissions = [limits.open("A", HOST) for _ in range(25)]
    assert admissions[:20] == [ADMITTED] * 20
    assert all("connection_creation_rate" in each.refusal and 0 < each.wait_s <= 1 for each in admissions[20:])
    assert limits.open("A", OTHER) == ADMITTED
    time.now_s += 0.5  # what was refused does not count
    assert limits.open("A", HOST) == ADMITTED


def test_the_default_of_all_addresses_counts_for_each_and_may_be_removed() -> None:
    limits = ConnectionLimits(NetConfig(), now=Time())
    limits.use_rates({OTHER: 5.0}, 1.0)
    assert [bool(limits.open("A", HOST).refusal) for _ in range(11)] == [False] * 10 + [True]
    assert not any(limits.open("A", OTHER).refusal for _ in range(50))
    limits.use_rates({}, None)
    assert limits.open("A", HOST) == ADMITTED


def test_the_rates_of_addresses_are_bounded() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=INT_MAX), now=Time())
    limits.use_rates({}, 100.0)
    for number in range(ADDRESSES_MAX + 10):
        host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        limits.open("A", host)
        limits.close("A", host)
    assert len(limits._rates_of_hosts) <= ADDRESSES_MAX
    assert not limits._per_host and not limits._per_listener


@pytest.mark.parametrize("text", ["nowhere:1", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:-1"])
def test_wrong_numbers_by_address_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_counts(text)
