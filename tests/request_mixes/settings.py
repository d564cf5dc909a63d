"""The settings of the brokers that scripts are played on."""

from __future__ import annotations

from pathlib import Path

from tests.support.ottla_process import OttlaProcess

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}  # no rebalance waits for members that do not come


def ottla(directory: Path) -> OttlaProcess:
    """Return a broker, not started."""
    return OttlaProcess(directory / "ottla", options=[f"-o{name}={value}" for name, value in SETTINGS.items()])
