"""The table of rules: its commands exist, its page is complete, and what needs no cluster to be seen."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ottla.client.admin import ClusterDescription
from ottla.client.broker_http import url_of
from ottla.client.cluster_health import ClusterHealth
from ottla.client.metadata import BrokerNode
from ottla.client.partition_health import Moves
from ottla.diagnosis.connection_rules import SYMPTOMS, of_reason
from ottla.diagnosis.diagnose import NOTES, RULES, judge
from ottla.diagnosis.events import read_events, seen
from ottla.diagnosis.facts import Facts
from ottla.diagnosis.rule import Subject
from tests.tidy.test_commands import unknown

ROOT = Path(__file__).resolve().parents[2]
NOW_MS = 1_800_000_000_000
COMMAND = re.compile(r"ottla((?: [a-z][a-z-]*){1,3})")


def _facts(**values: object) -> Facts:
    described = ClusterDescription("c", 1, (BrokerNode(1, "host", 9092), BrokerNode(2, "host", 9093)))
    health = ClusterHealth(described, (), (), {}, (), (), Moves(()), ())
    return Facts(NOW_MS, health, events=(), **values)  # type: ignore[arg-type]


def _rules(facts: Facts, subject: Subject, name: str = "") -> list[str]:
    return [finding.rule for finding in judge(facts, subject, name)]


def test_the_page_has_every_rule_of_the_table_with_what_it_reads() -> None:
    page = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    assert not [rule.name for rule in RULES if f"| {rule.subject} | {rule.name} | {rule.reads} |" not in page]
    assert {rule.name for rule in RULES} >= NOTES


def test_rules_have_names_of_their_own() -> None:
    names = [(rule.subject, rule.name) for rule in RULES]
    assert len(names) == len(set(names))


def test_every_command_of_a_fix_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src/ottla/diagnosis").glob("*rules.py")]
    commands = {match[1].strip() for text in texts for match in COMMAND.finditer(text)}
    assert len(commands) > 15
    wrong = {
        command for command in commands if unknown(command) is not None and unknown(command) in command.split()[:2]
    }
    assert not wrong


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_a_message_of_the_client_is_explained(symptom: object) -> None:
    found = of_reason("host:9092", f"the peer said: {symptom.words[0]}")  # type: ignore[attr-defined]
    assert found.rule == symptom.name  # type: ignore[attr-defined]
    assert "host:9092" in found.cause


def test_a_clock_that_differs_is_said_and_one_that_nearly_agrees_is_not() -> None:
    facts = _facts(clock_skews_s={1: 4.0, 2: -90.0})
    assert [(finding.rule, finding.cause) for finding in judge(facts, Subject.BROKER, "")] == [
        (
            "clock",
            "the clock of broker 2 shows a time 90 s before this machine's: retention, timestamps and tokens go by it",
        )
    ]


def test_brokers_of_different_releases_are_said() -> None:
    assert _rules(_facts(versions={1: {"Fetch": 17}, 2: {"Fetch": 16}}), Subject.BROKER) == ["mixed releases"]


def test_an_old_event_explains_nothing_today() -> None:
    old = seen({"time": "2020-01-01T00:00:00Z", "kind": "slow-fsync", "broker": 1, "cause": "slow"})
    facts = _facts()
    facts.events = [old]
    assert _rules(facts, Subject.BROKER) == []


@pytest.fixture
def listener() -> Iterator[str]:
    """A listener for HTTP that has one event, and a clock that is ten minutes ahead."""
    event = {"time": "2027-01-15T08:00:00.000Z", "broker": 1, "kind": "disk", "cause": "full", "count": 2}
    body = json.dumps({"broker": 1, "now": "2027-01-15T08:10:00.000Z", "events": [event]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == "Bearer key" and self.path.startswith("/events?since=")
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"0.0.0.0:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_events_are_read_from_the_listener_of_a_broker_which_reports_its_time(listener: str) -> None:
    nodes = (BrokerNode(1, "127.0.0.1", 9092),)
    configs = {1: {"ottla.http.listener": listener}}
    read = await read_events(None, nodes, configs, now_ms=NOW_MS, since_ms=0, token="key")  # type: ignore[arg-type]
    assert read.events is not None
    assert [(event.kind, event.cause, event.count) for event in read.events] == [("disk", "full", 2)]
    assert read.clock_skews_s == {1: 600.0}
    refused = await read_events(None, nodes, configs, now_ms=NOW_MS, since_ms=0)  # type: ignore[arg-type]
    assert refused.events is None and "401" in refused.unread["events of broker 1"]


def test_an_address_for_all_interfaces_is_that_of_the_broker() -> None:
    assert url_of("https://[::]:8443", "fd00::1", "/events") == "https://[fd00::1]:8443/events"
