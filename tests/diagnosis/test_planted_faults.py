"""Each planted fault is explained by its command, first of all, with what to do; and what is well is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.testing.kit.kafka import Kafka, kafka
from tests.diagnosis.faults import FAULTS
from tests.diagnosis.planting import EVENTS, Fault, Planted, ask, first_lines
from tests.diagnosis.plants import with_certificate

BY_KIT = sorted(FAULTS, key=lambda fault: fault.kit)


@pytest.fixture(scope="module")
def kits() -> Iterator[dict[object, Kafka]]:
    """Brokers that faults share, as long as the next ones need the same."""
    running: dict[object, Kafka] = {}
    yield running
    for k in running.values():
        k.stop()


def brokers_for(kits: dict[object, Kafka], fault: Fault, directory: Path) -> Kafka:
    """Return brokers as a fault needs them; those of others end before."""
    if fault.kit not in kits:
        for k in kits.values():
            k.stop()
        kits.clear()
        options = with_certificate(fault.options or EVENTS, directory)
        kits[fault.kit] = kafka(brokers=fault.brokers, options=options, history=False).start()
    return kits[fault.kit]


async def explained(k: Kafka, fault: Fault, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Plant a fault and ask for it."""
    async with AsyncExitStack() as stack:
        planted = Planted(k, directory, stack)
        with contextlib.suppress(CannotConnect, KafkaError):  # the fault may be in the way of this client, too
            connecting = Cluster.connect(parse_addresses(k.bootstrap), options=ClientOptions(retry_s=5.0))
            planted.connected = await stack.enter_async_context(await connecting)
        await fault.plant(planted)
        return await first_lines(planted, fault, monkeypatch)


@pytest.mark.parametrize("fault", BY_KIT, ids=lambda fault: fault.name)
def test_a_planted_fault_is_explained_first_and_with_its_fix(
    fault: Fault,
    kits: dict[object, Kafka],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    k = brokers_for(kits, fault, tmp_path_factory.mktemp("certificates"))
    cause, fix = asyncio.run(explained(k, fault, tmp_path, monkeypatch))
    assert re.search(fault.line, cause)
    assert fault.fix in fix


def test_the_table_has_at_least_forty_faults_of_different_names() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40


def test_nothing_is_found_where_all_is_well() -> None:
    async def findings(k: Kafka) -> list[str]:
        async with AsyncExitStack() as stack:
            return [finding.rule for finding in await ask(Planted(k, Path(), stack), "doctor")]

    with kafka(topics={"orders": 2}, brokers=3, options=EVENTS) as k:
        k.produce_many("orders", [b"%d" % number for number in range(20)])
        assert asyncio.run(findings(k)) == []
