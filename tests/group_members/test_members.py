"""Groups of real members: no partition has two owners, and no acknowledged commit is lost, through rolling restarts."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.group_members.campaign import Campaign, rolling_restarts
from tests.support.ottla_process import OttlaProcess

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(600)]


def campaign(server: OttlaProcess, path: Path, *, partitions: int, session_ms: int = 30_000) -> Campaign:
    return Campaign(server.bootstrap, f"members-{uuid.uuid4().hex[:8]}", path / "logs", partitions, session_ms)


@pytest.mark.parametrize("client", ["librdkafka", "ottla"])
def test_one_member_alone_restarts(ottla_server: OttlaProcess, tmp_path: Path, client: str) -> None:
    one = campaign(ottla_server, tmp_path, partitions=3)
    assert rolling_restarts(one, (client,), members=1, processes=1) > 10
    assert [step.members for step in one.steps] == [1, 1]


def test_ten_members_of_the_new_protocol_are_restarted(ottla_server: OttlaProcess, tmp_path: Path) -> None:
    ten = campaign(ottla_server, tmp_path, partitions=20)
    assert rolling_restarts(ten, ("kip848",), members=10, processes=2) > 50


def test_ten_members_of_two_clients_are_restarted_and_one_process_is_killed(
    ottla_server: OttlaProcess, tmp_path: Path
) -> None:
    ten = campaign(ottla_server, tmp_path, partitions=20, session_ms=8_000)
    ten.begin()
    for client in ("librdkafka", "ottla"):
        for _ in range(2):
            ten.start(client, 2 if client == "librdkafka" else 3)
    ten.settle("start")
    for name in list(ten.workers):
        ten.restart(name, kill=name == "ottla_3")
        ten.settle("restart of one process")
    ten.end()
    assert ten.check() > 100
