"""Quotas by themselves: which one counts, what their values look like in a node, and what a broker keeps of clients."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.core.errors import InvalidRequest
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, EntityConfig
from ottla.security.config import QuotaConfig
from ottla.security.quotas.client_quotas import EXPIRE_MS, OTHERS, RATES_MAX, THROTTLED_MAX, ClientQuotas
from ottla.security.quotas.entities import (
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Name,
    QuotaEntity,
    entity_of,
    entity_of_node,
    node_of,
    quotas_in,
    value_text,
)
from ottla.security.quotas.matching import QuotaTable

NAMES: tuple[Name | None, ...] = (None, DEFAULT, "a", "b c", "<default>", "CN=x,O=*~/é")
names = st.sampled_from(NAMES)
quota_entities = st.tuples(names, names).filter(any).map(lambda pair: QuotaEntity(*pair))


def view_of(quotas: dict[QuotaEntity, float], key: str = PRODUCER_BYTE_RATE) -> ClusterView:
    configs: dict[str, dict[str, EntityConfig]] = {}
    for entity, value in quotas.items():
        kind, name = node_of(entity)
        configs.setdefault(kind, {})[name] = EntityConfig({key: value_text(key, value)}, 0)
    return ClusterView(configs=configs)


def by_a_list(quotas: dict[QuotaEntity, float], user: str, client: str) -> tuple[float, str, str] | None:
    """Return what the list of Kafka's documentation says."""
    for entity, shared_user, shared_client in order_for(user, client):
        if entity in quotas and (client or entity.client_id is None):
            return quotas[entity], shared_user, shared_client
    return None


def order_for(user: str, client: str) -> list[tuple[QuotaEntity, str, str]]:
    return [
        (QuotaEntity(user, client), user, client),
        (QuotaEntity(user, DEFAULT), user, client),
        (QuotaEntity(user, None), user, ""),
        (QuotaEntity(DEFAULT, client), user, client),
        (QuotaEntity(DEFAULT, DEFAULT), user, client),
        (QuotaEntity(DEFAULT, None), user, ""),
        (QuotaEntity(None, client), "", client),
        (QuotaEntity(None, DEFAULT), "", client),
    ]


def test_each_level_comes_before_all_that_follow_it() -> None:
    order = order_for("a", "b c")
    for first in range(len(order)):
        table = QuotaTable()
        table.update(ClusterView(), view_of({each[0]: float(at + 1) for at, each in enumerate(order) if at >= first}))
        assert table.limit(PRODUCER_BYTE_RATE, "a", "b c") == (first + 1, *order[first][1:])


@given(
    quotas=st.dictionaries(quota_entities, st.integers(1, 10**12).map(float), max_size=12),
    user=st.sampled_from(["a", "b c", "<default>", "other"]),
    client=st.sampled_from(["", "a", "b c", "<default>", "other"]),
)
def test_the_quota_that_counts_is_the_first_of_kafkas_order(
    quotas: dict[QuotaEntity, float], user: str, client: str
) -> None:
    table = QuotaTable()
    assert table.update(ClusterView(), view_of(quotas)) == bool(quotas)
    assert table.limit(PRODUCER_BYTE_RATE, user, client) == by_a_list(quotas, user, client)
    assert table.limit(REQUEST_PERCENTAGE, user, client) is None  # each key by itself
    assert table.is_empty != bool(quotas)


@given(st.lists(st.dictionaries(quota_entities, st.integers(1, 9).map(float), max_size=6), min_size=1, max_size=5))
def test_a_table_that_follows_changes_is_that_of_the_last_snapshot(steps: list[dict[QuotaEntity, float]]) -> None:
    table, view = QuotaTable(), ClusterView()
    for quotas in steps:
        after = view_of(quotas)
        table.update(view, after)
        view = after
    whole = QuotaTable()
    whole.update(ClusterView(), view)
    for user in ("a", "b c", "other"):
        for client in ("", "a", "other"):
            found = table.limit(PRODUCER_BYTE_RATE, user, client)
            assert found == whole.limit(PRODUCER_BYTE_RATE, user, client)
    assert table.is_empty == whole.is_empty


@given(quota_entities)
def test_an_entity_is_read_again_from_the_name_of_its_node(entity: QuotaEntity) -> None:
    assert entity_of_node(*node_of(entity)) == entity
    assert entity_of(dict(entity.parts())) == entity


def test_nodes_are_those_of_kafka() -> None:
    assert node_of(QuotaEntity(user="CN=a b", client_id="c*")) == ("users", "CN%3Da%20b/clients/c%2A")
    assert node_of(QuotaEntity(DEFAULT, DEFAULT)) == ("users", "<default>/clients/<default>")
    assert node_of(QuotaEntity(client_id="~")) == ("clients", "%7E")
    assert node_of(QuotaEntity(ip="::1")) == ("ips", "%3A%3A1")
    assert node_of(QuotaEntity(ip=DEFAULT)) == ("ips", "<default>")
    assert entity_of_node("users", "a/clients") is None
    text = znodes.encode_config({PRODUCER_BYTE_RATE: value_text(PRODUCER_BYTE_RATE, 1024)})
    assert text == b'{"version":1,"config":{"producer_byte_rate":"1024"}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (12.5, "12.5"),
        (0.001, "0.001"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (1.25e-5, "1.25E-5"),
        (123456789.0, "1.23456789E8"),
        (float("inf"), "Infinity"),
        (1 / 3, "0.3333333333333333"),
        (1e300, "1.0E300"),
    ],
)
def test_percentages_are_written_as_java_writes_a_double(value: float, text: str) -> None:
    assert value_text(REQUEST_PERCENTAGE, value) == text
    assert quotas_in({REQUEST_PERCENTAGE: text}) == {REQUEST_PERCENTAGE: value}


def test_what_is_no_quota_of_a_node_is_passed_over() -> None:
    values = {"SCRAM-SHA-256": "salt=", PRODUCER_BYTE_RATE: "5", "consumer_byte_rate": "x", REQUEST_PERCENTAGE: "NaN"}
    assert quotas_in(values) == {PRODUCER_BYTE_RATE: 5.0}


@pytest.mark.parametrize("name", ["localhost", "10.0.0", "10.0.0.1/8"])
def test_a_host_name_is_no_address(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid IP or resolvable host"):
        entity_of({"ip": name})


# ---- What a broker keeps of clients


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas_of(quotas: dict[QuotaEntity, float], time: Time) -> tuple[ClientQuotas, QuotaTable]:
    table = QuotaTable()
    table.update(ClusterView(), view_of(quotas))
    return ClientQuotas(QuotaConfig(), table, time), table


def test_clients_that_share_a_quota_share_a_rate() -> None:
    quotas, _ = quotas_of(
        {QuotaEntity("a"): 10.0, QuotaEntity("b", DEFAULT): 20.0, QuotaEntity(None, "c"): 30.0}, Time()
    )
    assert quotas.of("a", "x").produce is quotas.of("a", "y").produce is not None
    assert quotas.of("b", "x").produce is not quotas.of("b", "y").produce
    assert quotas.of("d", "c").produce is quotas.of("e", "c").produce is not None
    assert quotas.of("d", "x").produce is None
    assert len(quotas) == 4


def test_a_rate_is_forgotten_after_an_hour_and_not_before() -> None:
    time = Time()
    quotas, _ = quotas_of({QuotaEntity(None, DEFAULT): 10.0}, time)
    rate = quotas.of("u", "old").produce
    assert rate is not None
    rate.record(5, quotas.now_ms())
    time.now_s += EXPIRE_MS / 1000 - 1
    quotas.of("u", "new")
    assert quotas.of("u", "old").produce is rate
    time.now_s += 100
    quotas.of("u", "newer")
    assert quotas.of("u", "old").produce is not rate


def test_throttle_times_of_invented_client_ids_are_counted_together() -> None:
    quotas = ClientQuotas(QuotaConfig(), QuotaTable(), lambda: 0.0)
    quotas.count_throttled("alice", "billing", 20)
    for number in range(2 * THROTTLED_MAX):
        quotas.count_throttled("mallory", f"client-{number}", 10)
    quotas.count_throttled("alice", "billing", 5)
    assert len(quotas.throttled_ms) == THROTTLED_MAX + 1
    assert quotas.throttled_ms["alice", "billing"] == 25
    assert quotas.throttled_ms[OTHERS] == (THROTTLED_MAX + 1) * 10


def test_rates_of_invented_client_ids_are_bounded_and_a_busy_one_is_kept() -> None:
    time = Time()
    quotas, _ = quotas_of({QuotaEntity(None, DEFAULT): 10.0}, time)
    busy = quotas.of("u", "busy").produce
    assert busy is not None
    for number in range(3 * RATES_MAX):
        time.now_s += 0.001
        quotas.of("u", f"invented-{number}")
        if number % 100 == 0:
            busy.record(1, quotas.now_ms())
        assert len(quotas) <= RATES_MAX and len(quotas._clients) <= RATES_MAX
    assert quotas.of("u", "busy").produce is busy


def test_a_changed_limit_counts_and_what_was_used_is_kept() -> None:
    time = Time()
    quotas, table = quotas_of({QuotaEntity("a"): 10.0}, time)
    rate = quotas.of("a", "").produce
    assert rate is not None
    rate.record(1000, quotas.now_ms())
    assert rate.throttle_ms(quotas.now_ms()) == 90_000
    table.update(view_of({QuotaEntity("a"): 10.0}), view_of({QuotaEntity("a"): 100.0}))
    quotas.look_up_again()
    same = quotas.of("a", "").produce
    assert same is rate and rate.throttle_ms(quotas.now_ms()) == 0
