"""`ottla why`, `doctor`, `cluster events` and `bundle` on brokers in memory: lines, JSON and exit codes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import main
from ottla.testing import Kafka, kafka

EVENTS = {"ottla.events.topic.enable": "true"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 2}, brokers=3, options=EVENTS) as k:
        k.produce("orders", b"x")
        yield k


class Ran:
    """One run of the program."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def ottla(brokers: Kafka, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main.run([*arguments, "--brokers", brokers.bootstrap])
        return Ran(code, *capsys.readouterr())

    return run


def test_what_is_well_ends_with_code_0_and_says_so(ottla: Any) -> None:
    ran = ottla("why", "topic", "orders")
    assert (ran.code, ran.out) == (0, "nothing is found that is not well\n")


def test_a_finding_is_a_line_with_the_cause_and_one_with_the_fix(ottla: Any) -> None:
    ran = ottla("why", "topic", "ordrs")
    assert ran.code == 4
    assert ran.out == "topic ordrs: there is no topic ordrs\n  fix: list the topics with ottla topic list\n"
    found = ottla("why", "broker", "9", "--format", "json").json["findings"]
    assert [(each["rule"], each["subject"], each["name"]) for each in found] == [("no such broker", "broker", "9")]


def test_a_fault_ends_with_code_1(brokers: Kafka, ottla: Any) -> None:
    brokers.create_topic("empty")
    ran = ottla("why", "topic", "empty")
    assert ran.code == 1 and "1 thing is not well" in ran.err


def test_no_connection_ends_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--brokers", "no-such-host.invalid:9092"]) == 3
    assert "no address is known for the host name" in capsys.readouterr().out


def test_events_say_who_was_the_leader_when(brokers: Kafka, ottla: Any) -> None:
    brokers.create_topic("moving", replication_factor=3)
    first = brokers.topic("moving").leader()
    second = next(node for node in brokers.brokers if node != first)
    brokers.move_leader("moving", to=second)
    rows = brokers.wait_until(
        lambda: ottla("cluster", "events", "--kind", "election", "--topic", "moving", "--format", "json").json
    )
    assert rows[-1]["cause"].startswith(f"broker {second} leads instead of {first}: preferred election")
    assert (rows[-1]["what"], rows[-1]["numbers"]["leader"]) == ("moving-0", second)
    assert "broker" in ottla("cluster", "events", "--kind", "controller").out


def test_a_kind_of_events_that_there_is_not_is_a_usage_error(ottla: Any) -> None:
    ran = ottla("cluster", "events", "--kind", "electon")
    assert ran.code == 2 and "rebalance" in ran.err


def test_a_bundle_has_facts_and_findings_and_is_not_overwritten(ottla: Any, tmp_path: Path) -> None:
    file, log = tmp_path / "case.tar.gz", tmp_path / "broker.log"
    log.write_text("a line\n")
    assert ottla("bundle", str(file), "--log", str(log)).code == 0
    with tarfile.open(file) as archive:
        names = set(archive.getnames())
        settings = json.loads(archive.extractfile("case/settings/broker-2.json").read())  # type: ignore[union-attr]
    assert {"case/groups.json", "case/events.json", "case/findings.json", "case/logs/0-broker.log"} <= names
    assert settings["ottla.events.topic.enable"] == "true"
    assert ottla("bundle", str(file)).code == 1
