"""The same requests to a real Apache Kafka and to Ottla, every API and version served, answers compared field by field.

`OTTLA_KAFKA` chooses its version (tests/support/kafka_jars.py). `OTTLA_TEST_BROKER=kafka` compares the real Kafka with a second one: the control that shows what the comparison itself
would take for a difference.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ottla.broker.requests.registry import APIS, TELEMETRY
from tests.differential import scenarios_admin as admin
from tests.differential import scenarios_config_values as values
from tests.differential import scenarios_consumer_groups as consumers
from tests.differential import scenarios_data as data
from tests.differential import scenarios_dead_letters as dead_letters
from tests.differential import scenarios_groups as groups
from tests.differential import scenarios_quotas as quotas
from tests.differential import scenarios_settings as topic_settings
from tests.differential import scenarios_share as share
from tests.differential import scenarios_telemetry as telemetry
from tests.differential import scenarios_transactions as transactions
from tests.differential.intended import INTENDED
from tests.differential.peer import Entry, Peer, differences
from tests.support.kafka_jars import NEWEST, VERSION
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka
from tests.support.wire_client import KEYS, Wire

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = {key: name for name, key in KEYS.items()}
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}  # both alike; a rebalance need not be waited for
NEW_PROTOCOLS: tuple[Callable[[Peer], None], ...] = (
    consumers.life_of_a_consumer_group,
    consumers.consumer_group_refusals,
    consumers.static_consumers,
    consumers.members_that_change,
    consumers.members_that_change_their_protocol,
    consumers.commits_of_consumers,
    consumers.settings_of_consumer_groups,
    share.share_members,
    share.share_deliveries,
    share.share_gone_topics,
    share.share_offsets,
    share.share_subscriptions,
    share.share_offsets_of_a_new_group,
    share.share_states,
)
"""Scenarios whose protocols Kafka still changed after 4.1: only the newest Kafka is compared with."""

NEW_IN_4_4: tuple[Callable[[Peer], None], ...] = (
    data.expected_nodes,
    values.topic_values,
    values.group_values,
    values.broker_values,
    values.shown_broker_values,
    dead_letters.dead_letters,
    dead_letters.refused_dead_letters,
)
"""Scenarios about versions and settings that Kafka added since 4.1: only the newest Kafka is compared with."""

SCENARIOS: tuple[Callable[[Peer], None], ...] = (
    data.api_versions,
    data.unsupported_versions,
    data.metadata,
    data.produce,
    data.partitions_twice,
    data.acks_zero,
    data.own_writes,
    data.idempotence,
    data.fetch,
    data.fetch_sessions,
    data.gone_topics,
    data.list_offsets,
    data.leader_epochs,
    data.delete_records,
    data.init_producer_id,
    data.describe_producers,
    data.unknown_tags,
    data.broken_bodies,
    admin.create_topics,
    admin.delete_topics,
    admin.create_partitions,
    admin.describe_configs,
    admin.broker_configs,
    admin.synonyms,
    admin.alter_configs,
    admin.incremental_alter_configs,
    admin.list_config_resources,
    admin.describe_cluster,
    admin.describe_topic_partitions,
    admin.describe_log_dirs,
    admin.alter_replica_log_dirs,
    admin.auto_creation,
    admin.signing_in_where_there_is_no_need,
    admin.access_control,
    admin.list_transactions,
    telemetry.client_metrics,
    admin.reassignments,
    admin.alter_reassignments,
    admin.elect_leaders,
    quotas.client_quotas,
    quotas.alter_client_quotas,
    admin.scram_credentials,
    admin.alter_scram_credentials,
    admin.delegation_tokens,
    admin.update_features,
    admin.describe_quorum,
    admin.unregister_broker,
    groups.coordinators,
    groups.life_of_a_group,
    groups.two_members,
    groups.static_members,
    groups.joins_that_cannot_be,
    groups.several_groups,
    groups.offset_delete,
    groups.static_member_with_other_topics,
    groups.members_without_subscriptions,
    groups.pending_members,
    groups.commit_too_large,
    groups.transactional_offset_commits,
    *(NEW_PROTOCOLS if VERSION == NEWEST else ()),
    transactions.transactions_of_all_versions,
    transactions.first_ends,
    transactions.partitions_of_transactions,
    transactions.producers_of_transactions,
    transactions.timed_out_transactions,
    transactions.described_and_listed,
    transactions.written_markers,
    transactions.transactional_produce,
    topic_settings.edge_values,
    *(NEW_IN_4_4 if VERSION == NEWEST else ()),
    topic_settings.looking_inside,
    topic_settings.recompression,
)


@dataclass(frozen=True, slots=True)
class ScenarioAnswers:
    """A scenario's answers from both sides, and how a side broke off if it did."""

    kafka: list[Entry]
    subject: list[Entry]
    broke_off: str


@pytest.fixture(scope="module")
def kafka_port(real_kafka: RealKafka) -> int:
    return real_kafka.port


@pytest.fixture(scope="module")
def subject_port(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory = tmp_path_factory.mktemp("differential") / "subject"
    if os.environ.get("OTTLA_TEST_BROKER") == "kafka":
        control = RealKafka(kafka_jars, directory, settings=SETTINGS).start()
        yield control.port
        control.stop()
        return
    server = OttlaProcess(directory, options=[f"-o{key}={value}" for key, value in SETTINGS.items()]).start()
    yield server.port
    server.stop()
    server.assert_log_is_clean()


@pytest.fixture(scope="module")
def versions(kafka_port: int) -> dict[str, tuple[int, int]]:
    """The versions both serve, by the name of the API."""
    with Wire(kafka_port) as wire:
        theirs = {
            key["api_key"]: (key["min_version"], key["max_version"]) for key in wire.call("api_versions", 2)["api_keys"]
        }
    return {
        NAMES[int(api.key)]: (api.min_version, min(api.max_version, theirs[int(api.key)][1]))
        for api in APIS.values()
        if api.key not in TELEMETRY
    } | {
        NAMES[key]: (0, 0)
        for key in TELEMETRY  # not advertised by default
    }


@pytest.fixture(scope="module")
def answers_of(
    kafka_port: int, subject_port: int, versions: dict[str, tuple[int, int]]
) -> Callable[[str], ScenarioAnswers]:
    """Runs a scenario on both sides, once."""

    @cache
    def run_scenario(name: str) -> ScenarioAnswers:
        broke_off, sides = "", []
        for port in (kafka_port, subject_port):
            peer = Peer(port, versions, f"d{names().index(name)}")
            try:
                SCENARIOS[names().index(name)](peer)
            except Exception:  # noqa: BLE001 - one scenario's end must not hide the others' findings
                last = peer.entries[-1] if peer.entries else None
                broke_off += f"port {port} broke off after {last!s:.500}\n{traceback.format_exc(limit=4)}"
            finally:
                peer.close()
            sides.append(peer.entries)
        return ScenarioAnswers(sides[0], sides[1], broke_off)

    return run_scenario


def names() -> list[str]:
    """The scenarios' names."""
    return [scenario.__name__ for scenario in SCENARIOS]


def unlike(one: ScenarioAnswers) -> list[tuple[Entry, str, object, object]]:
    """Every difference between the two sides of a scenario."""
    found: list[tuple[Entry, str, object, object]] = []
    for kafka, subject in zip(one.kafka, one.subject, strict=False):
        if (kafka.label, kafka.api, kafka.version) != (subject.label, subject.api, subject.version):
            found.append((kafka, "(order)", kafka.label, subject.label))
            break
        found += [(kafka, *each) for each in differences(kafka.answer, subject.answer)]
    return found


@pytest.mark.parametrize("name", names())
def test_both_brokers_answer_alike(answers_of: Callable[[str], ScenarioAnswers], name: str) -> None:
    one = answers_of(name)
    surprising: Counter[str] = Counter()
    at: dict[str, list[int]] = {}
    for entry, path, expected, got in unlike(one):
        if not any(row.covers(entry.api, entry.label, path) for row in INTENDED if row.applies):
            line = f"{entry.api}: {entry.label}: {path}: Kafka {expected!r:.120}, here {got!r:.120}"
            surprising[line] += 1
            at.setdefault(line, []).append(entry.version)
    report = "\n".join(f"{line} (versions {sorted(set(at[line]))})" for line in surprising)
    if surprising or one.broke_off:
        pytest.fail(f"{len(surprising)} differences\n{report}\n{one.broke_off}", pytrace=False)
    assert len(one.kafka) == len(one.subject) > 0


def test_every_row_of_the_table_of_intended_differences_still_occurs(
    answers_of: Callable[[str], ScenarioAnswers],
) -> None:
    if os.environ.get("OTTLA_TEST_BROKER") == "kafka":
        pytest.skip("two real Kafkas do not differ on purpose")
    seen = [(entry.api, entry.label, path) for one in map(answers_of, names()) for entry, path, _, _ in unlike(one)]
    compared = {(entry.api, entry.label) for one in map(answers_of, names()) for entry in one.kafka}
    expected = [row for row in INTENDED if row.applies and any(row.is_of(*each) for each in compared)]
    assert not [row for row in expected if not any(row.covers(*each) for each in seen)]
    assert VERSION != NEWEST or len(expected) == sum(row.applies for row in INTENDED)


def test_every_version_of_every_api_was_compared(
    answers_of: Callable[[str], ScenarioAnswers], versions: dict[str, tuple[int, int]]
) -> None:
    asked = {
        (entry.api, entry.version)
        for one in map(answers_of, names())
        for entry in one.kafka
        if entry.answer != "connection closed"
    }
    wanted = {
        (api, version)
        for api, (low, high) in versions.items()
        for version in range(low, high + 1)
        if VERSION == NEWEST or not ("share" in api or api.startswith("consumer_group"))
    }
    assert wanted <= asked, sorted(wanted - asked)
