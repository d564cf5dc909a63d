"""A plug-in of pytest that leaves out the tests of a suite that use no broker."""

from __future__ import annotations

import pytest

FIXTURES = frozenset(
    {"kafka_broker", "kafka_broker_factory", "kafka_container", "kafka_container_factory", "kafka_server"}
)
"""The fixtures by which the suites get their brokers."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests without a broker."""
    left_out = [item for item in items if not FIXTURES.intersection(getattr(item, "fixturenames", ()))]
    items[:] = [item for item in items if FIXTURES.intersection(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=left_out)
