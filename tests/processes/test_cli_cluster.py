"""`ottla cluster reassign`, `drain`, `leaders` and `health` as processes, against a cluster of several brokers."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.errors import ExitCode
from ottla.testing.cluster import TestCluster
from tests.processes.cli_runner import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:coroutine 'handle' was never awaited:RuntimeWarning"),
]
"""A killed broker does not run the requests that it has just received."""

RECORDS = b"".join(b"%d\n" % number for number in range(200))
SLOW = {"replica.lag.time.max.ms": "1000"}


Call = Callable[..., Awaitable[str]]


@pytest.fixture
def call(cluster: TestCluster, tmp_path: Path) -> Call:
    """Call the program in a thread, while the brokers run here."""

    async def call(*arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        cli = Cli(cluster.bootstrap, tmp_path)
        done = await asyncio.to_thread(lambda: cli.run(*arguments, stdin=stdin, code=code))
        return (done.stdout or done.stderr).decode()

    return call


def replicas_of(cluster: TestCluster, topic: str) -> list[tuple[int, ...]]:
    node = next(iter(cluster.brokers))
    return [partition.replicas for partition in cluster.services(node).cluster.current.topics[topic].partitions]


async def test_a_plan_moves_a_topic_to_a_new_broker_and_loses_nothing(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-p", "4", "-r", "2")
    await call("produce", "t", stdin=RECORDS)
    await cluster.restart(4)
    shown = await call("cluster", "reassign", "plan", "t", "--format", "json")
    plan = json.loads(shown)
    assert any(4 in each["replicas"] for each in plan["partitions"])
    assert "to copy: " in await call("cluster", "reassign", "plan", "t")
    before = replicas_of(cluster, "t")
    assert "nothing was changed" in await call("cluster", "reassign", "apply", "-", "--dry-run", stdin=shown.encode())
    assert replicas_of(cluster, "t") == before
    assert "moved" in await call("cluster", "reassign", "apply", "-", "--wait", stdin=shown.encode())
    after = replicas_of(cluster, "t")
    assert sum(4 in replicas for replicas in after) == 2
    assert "no replicas are being moved" in await call("cluster", "reassign", "status")
    assert sorted((await call("consume", "t")).split()) == sorted(RECORDS.decode().split())


@pytest.mark.brokers(4)
async def test_a_broker_is_drained(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-p", "4", "-r", "2")
    await call("produce", "t", stdin=RECORDS)
    await call("cluster", "drain", "2", "--wait")
    for topic in cluster.services(1).cluster.current.topics:
        assert all(2 not in replicas for replicas in replicas_of(cluster, topic)), topic
    assert "broker 2 has no replicas" in await call("cluster", "drain", "2")
    await cluster.stop(2)
    assert sorted((await call("consume", "t")).split()) == sorted(RECORDS.decode().split())
    assert '"healthy": true' in await call("cluster", "health", "--format", "json")


async def test_a_drain_without_another_broker_is_refused(call: Any) -> None:
    await call("topic", "create", "t", "-r", "3")
    assert "a replica on every broker" in await call("cluster", "drain", "1", code=ExitCode.FAILED)


async def test_a_move_that_cannot_complete_is_shown_and_canceled(
    cluster: TestCluster, call: Any, tmp_path: Path
) -> None:
    await call("topic", "create", "t", "-r", "1")
    await call("produce", "t", stdin=RECORDS)
    (before,) = replicas_of(cluster, "t")
    others = [node for node in (1, 2, 3) if node not in before and node != cluster.controller]
    target = others[0]
    await cluster.kill(target, session_expires=False)
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [target]}]}
    waiting = asyncio.create_task(asyncio.to_thread(_apply_and_wait, cluster.bootstrap, tmp_path, plan))
    await cluster.until(lambda: _partitions(cluster)[0].adding == (target,), seconds=30)
    status = await call("cluster", "reassign", "status", "--format", "json")  # the dead broker is still registered
    assert json.loads(status)[0]["adding"] == [target]
    await cluster.expire(target)
    await cluster.until(lambda: all(target not in _brokers(cluster, node) for node in cluster.brokers))
    (row,) = json.loads(await call("cluster", "reassign", "status", "--format", "json"))
    assert (row["adding"], row["removing"], row["progress"]) == ([target], list(before), "0 %")
    health = json.loads(await call("cluster", "health", "--format", "json"))  # what is being added is not missing
    assert (health["healthy"], health["under_replicated"], health["moving"]) == (True, 0, 1)
    (listed,) = json.loads(await call("topic", "list", "t", "--format", "json"))
    assert (listed["offline"], listed["under_replicated"], listed["under_min_isr"]) == (0, 0, 0)
    assert not waiting.done()
    assert "canceled 1 moves" in await call("cluster", "reassign", "cancel")
    assert "the move was canceled" in await waiting
    assert replicas_of(cluster, "t") == [before]
    await cluster.restart(target)
    await call("cluster", "reassign", "apply", "-", "--wait", stdin=json.dumps(plan).encode())
    assert replicas_of(cluster, "t") == [(target,)]
    assert "no replicas are being moved" in await call("cluster", "reassign", "cancel")


async def test_partitions_without_a_leader_are_shown_where_one_looks(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-p", "3", "-r", "1")
    for partition in ("0", "1", "2"):
        await call("produce", "t", "-p", partition, stdin=RECORDS)
    await call("consume", "t", "--group", "team")
    victim = next(node for node in cluster.brokers if node != cluster.controller)
    (lost,) = (index for index, p in enumerate(_partitions(cluster)) if p.leader == victim)
    await cluster.kill(victim)
    await cluster.until(lambda: _partitions(cluster)[lost].leader == -1, seconds=15)
    shown = json.loads(await call("cluster", "health", "-f", "json", code=ExitCode.FAILED))
    assert shown["offline"] == 1
    assert "t: 1 of 3 partitions has no leader" in shown["problems"]
    assert f"missing: {victim} (replicas name them)" in shown["problems"]
    shown = json.loads(await call("cluster", "health", "-f", "json", "--verbose", code=ExitCode.FAILED))
    assert f"t-{lost} has no leader" in shown["problems"]
    assert {"topic": "t", "partition": lost, "has_leader": False, "in_sync": 1, "replicas": 1} in shown[
        "unhealthy_partitions"
    ]
    rows = json.loads(await call("cluster", "brokers", "-f", "json"))["brokers"]
    assert {row["id"]: row["state"] for row in rows} == {
        node: "missing" if node == victim else "registered" for node in (1, 2, 3)
    }
    for command in ("list", "describe"):
        assert "1 offline" in await call("topic", command, "t")
    rows = json.loads(await call("group", "lag", "team", "--format", "json"))
    assert {row["partition"]: row["lag"] for row in rows} == {**dict.fromkeys(range(3), 0), lost: None}


async def test_a_group_is_described_while_a_leader_is_dead_and_not_replaced_yet(
    cluster: TestCluster, call: Any
) -> None:
    await call("topic", "create", "t", "-p", "3", "-r", "1")
    await call("topic", "create", "other", "-p", "1", "-r", "1")
    for partition in ("0", "1", "2"):
        await call("produce", "t", "-p", partition, stdin=RECORDS)
    await call("consume", "t", "--group", "team", "-n", "10")
    coordinator = json.loads(await call("group", "describe", "team", "-f", "json"))["coordinator"]
    victim = next(node for node in cluster.brokers if node not in {cluster.controller, coordinator})
    (lost,) = (index for index, p in enumerate(_partitions(cluster)) if p.leader == victim)
    await cluster.kill(victim, session_expires=False)
    async with asyncio.timeout(20):  # and not for as long as requests are repeated
        shown = json.loads(await call("group", "describe", "team", "-f", "json"))
    found = {row["partition"]: row for row in shown["partitions"]}
    assert [found[index]["lag"] is None for index in range(3)] == [index == lost for index in range(3)]
    assert f"broker {victim}" in found[lost]["unknown_because"]
    async with asyncio.timeout(20):
        assert f"unknown: t-{lost}: " in await call("group", "lag", "team")
    async with asyncio.timeout(20):
        refused = await call("group", "seek", "team", "--to", "start", "--topic", "t", code=ExitCode.FAILED)
    assert f"none was changed: t-{lost}: " in refused
    async with asyncio.timeout(20):
        rows = json.loads(await call("topic", "describe", "t", "-f", "json"))["partitions"]
    assert [row["end_offset"] for row in rows] == [None if index == lost else 200 for index in range(3)]
    await cluster.expire(victim)


def _apply_and_wait(bootstrap: str, path: Path, plan: dict[str, Any]) -> str:
    """Apply a plan and wait; returns why that failed."""
    arguments = ("cluster", "reassign", "apply", "-", "--wait")
    return Cli(bootstrap, path).fails(*arguments, stdin=json.dumps(plan).encode(), code=ExitCode.FAILED)


def _brokers(cluster: TestCluster, node: int) -> Any:
    return cluster.services(node).cluster.current.brokers


@pytest.mark.brokers(1)
async def test_a_plan_that_would_be_refused_is_refused_in_a_dry_run(call: Any) -> None:
    await call("topic", "create", "t", "-r", "1")

    async def apply(partition: int, replicas: list[int], *, code: int) -> str:
        plan = {"version": 1, "partitions": [{"topic": "t", "partition": partition, "replicas": replicas}]}
        stdin = json.dumps(plan).encode()
        shown: str = await call("cluster", "reassign", "apply", "-", "--dry-run", stdin=stdin, code=code)
        await call("cluster", "reassign", "apply", "-", stdin=stdin, code=code)
        return shown

    assert "no such partition" in await apply(7, [1], code=ExitCode.NOT_FOUND)
    assert "no replicas" in await apply(0, [], code=ExitCode.FAILED)
    assert "a broker twice" in await apply(0, [1, 1], code=ExitCode.FAILED)
    refused = await call("cluster", "drain", "9", code=ExitCode.NOT_FOUND)
    assert "there is no broker 9" in refused


async def test_the_health_names_partitions_that_lag_and_the_preferred_leader_is_elected(
    cluster: TestCluster, call: Any
) -> None:
    await call("topic", "create", "t", "-p", "3", "-r", "3", "-c", "min.insync.replicas=3")
    await call("cluster", "health")
    victim = next(node for node in (1, 2, 3) if node != cluster.controller)
    await cluster.kill(victim)
    await cluster.until(lambda: all(p.leader >= 0 for p in _partitions(cluster)), seconds=15)
    shown = json.loads(await call("cluster", "health", "-f", "json", code=ExitCode.FAILED))
    assert (shown["under_replicated"], shown["under_min_isr"], shown["offline"]) == (3, 3, 0)
    assert shown["problems"][:2] == [
        f"missing: {victim} (replicas name them)",
        "t: 3 of 3 partitions have 2 of 3 in sync, too few for acks=all",
    ]
    (listed,) = json.loads(await call("topic", "list", "t", "--format", "json"))
    assert (listed["offline"], listed["under_replicated"], listed["under_min_isr"]) == (0, 3, 3)
    for command in ("list", "describe"):
        assert "3 under replicated, 3 under min isr" in await call("topic", command, "t")
    await cluster.restart(victim)
    await cluster.until(lambda: all(len(p.isr) == 3 for p in _partitions(cluster)), seconds=30)
    await call("cluster", "leaders", "--elect", "preferred")
    await cluster.until(lambda: all(p.leader == p.replicas[0] for p in _partitions(cluster)))
    rows = json.loads(await call("cluster", "leaders", "t", "--format", "json"))
    assert [(row["broker"], row["leaders"], row["replicas"]) for row in rows] == [(1, 1, 3), (2, 1, 3), (3, 1, 3)]
    assert "may lose" in await call("cluster", "leaders", "--elect", "unclean", code=ExitCode.USAGE)


def _partitions(cluster: TestCluster) -> tuple[Any, ...]:
    node = next(iter(cluster.brokers))
    return cluster.services(node).cluster.current.topics["t"].partitions


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1", tmp_path)
    assert b"is not a plan" in cli.run("cluster", "reassign", "apply", "-", stdin=b"{}", code=ExitCode.USAGE).stderr
    (tmp_path / "binary").write_bytes(b"\xff" * 1000)
    done = cli.run("cluster", "reassign", "apply", str(tmp_path / "binary"), code=ExitCode.USAGE)
    assert b"binary is not a plan: invalid start byte" in done.stderr
    assert b"No such file" in cli.run("cluster", "reassign", "apply", "absent.json", code=ExitCode.USAGE).stderr


@pytest.mark.brokers(2)
async def test_the_health_is_shown_while_the_controller_has_no_store(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-r", "2")
    services = cluster.services(cluster.controller)
    services.controller._term = None  # it has resigned, and no other one can be elected
    shown = await call("cluster", "health", "--format", "json", code=ExitCode.FAILED)
    (problem,) = json.loads(shown)["problems"]
    assert problem.startswith(f"the controller, broker {services.cluster.current.controller_id}, does not answer: ")
    assert json.loads(shown)["moving"] is None


@pytest.mark.brokers(1)
@pytest.mark.directories(2)
async def test_the_health_names_full_and_offline_directories(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-p", "2", "-r", "1")
    full, lost = cluster.services(1).replicas.directories.opened
    cluster.fill_disk(1, full.path)
    full.health.fill_up("a test", "No space left on device")
    lost.health.fail("a test", OSError(errno.EIO, "Input/output error"))
    shown = json.loads(await call("cluster", "health", "-f", "json", code=ExitCode.FAILED))
    assert (shown["full_directories"], shown["offline_directories"]) == (1, 1)
    assert shown["problems"][:2] == [
        f"{lost.path} of broker 1 is offline until a restart",
        f"{full.path} of broker 1 is full: writes are refused",
    ]
    rows = json.loads(await call("cluster", "log-dirs", "-f", "json"))
    assert [(row["full"], row["online"]) for row in rows] == [(True, True), (False, False)]
    assert "is full: writes are refused" in await call("cluster", "health", code=ExitCode.FAILED)


@pytest.mark.brokers(1)
@pytest.mark.directories(2)
async def test_the_state_of_a_topic_shows_that_writes_are_refused(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-p", "2", "-r", "1")
    assert "state     ok" in await call("topic", "describe", "t")
    full, _ = cluster.services(1).replicas.directories.opened
    cluster.fill_disk(1, full.path)
    full.health.fill_up("a test", "No space left on device")
    shown = json.loads(await call("topic", "describe", "t", "-f", "json"))
    assert shown["refusing_writes"] == 1
    assert "1 refusing writes (full disk)" in await call("topic", "describe", "t")


async def test_the_health_is_awaited(cluster: TestCluster, call: Any) -> None:
    await call("topic", "create", "t", "-r", "3")
    await cluster.kill(next(node for node in (1, 2, 3) if node != cluster.controller))
    victim = next(iter({1, 2, 3} - cluster.brokers.keys()))
    shown = await call("cluster", "health", "--wait", "500ms", code=ExitCode.FAILED)
    assert f"missing: {victim} (replicas name them)" in shown
    waiting = asyncio.ensure_future(call("cluster", "health", "--wait", "1m"))
    await cluster.restart(victim)
    assert "healthy" in await waiting


async def test_the_health_of_a_cluster_whose_controller_is_dead_is_shown(cluster: TestCluster, call: Any) -> None:
    controller = cluster.controller
    await cluster.kill(controller, session_expires=False)
    shown = await call("cluster", "health", "--timeout", "5", code=ExitCode.FAILED)
    assert "the cluster has no controller" in shown
    assert f"broker {controller} does not answer: " in shown
    await cluster.expire(controller)
