"""A registration that is there when a broker starts is that of its earlier run, or of another broker with its id."""

from __future__ import annotations

import pytest

from ottla.metadata_store import znodes
from ottla.metadata_store.broker_registration import has_same_address
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create

CLIENTS, BROKERS = znodes.Endpoint("localhost", 9092), znodes.Endpoint("localhost", 40001)
PROTOCOLS = {"CLIENTS": "SASL_SSL", "BROKERS": "SSL"}


def _broker(**endpoints: znodes.Endpoint) -> znodes.BrokerRegistration:
    return znodes.BrokerRegistration(1, endpoints, {name: PROTOCOLS[name] for name in endpoints})


@pytest.mark.parametrize(
    ("starting", "is_same"),
    [
        (_broker(CLIENTS=CLIENTS, BROKERS=BROKERS), True),
        (_broker(CLIENTS=CLIENTS, BROKERS=znodes.Endpoint("localhost", 40002)), True),  # by port 0
        (_broker(CLIENTS=znodes.Endpoint("localhost", 9093), BROKERS=znodes.Endpoint("localhost", 40002)), False),
        (_broker(CLIENTS=znodes.Endpoint("elsewhere", 9092), BROKERS=znodes.Endpoint("elsewhere", 40001)), False),
    ],
)
async def test_an_earlier_run_is_known_by_any_address_that_the_broker_has_again(
    starting: znodes.BrokerRegistration, is_same: bool
) -> None:
    store = EmbeddedMetadataStore().session()
    await store.commit([Create("/brokers"), Create("/brokers/ids")])
    await store.commit([Create(znodes.broker_path(1), znodes.encode_broker(_broker(CLIENTS=CLIENTS, BROKERS=BROKERS)))])
    assert await has_same_address(store, starting) == is_same
    await store.close()
