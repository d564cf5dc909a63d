"""`ottla topic`, `config`, `cluster` and `profile` as processes, against a running broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.processes.cli_runner import Cli, program

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(broker: Broker, tmp_path: Path) -> Cli:
    return Cli(broker.bootstrap, tmp_path)


def test_a_topic_is_created_described_altered_and_deleted(cli: Cli) -> None:
    assert cli.out("topic", "create", "life", "-p", "2", "-c", "retention.ms=3600000") == b"created life\n"
    assert "already exists" in cli.fails("topic", "create", "life", code=1)
    assert cli.out("topic", "create", "life", "--if-not-exists") == b"life exists\n"
    cli.out("produce", "life", "-p", "1", stdin=b"a\nb\n")
    described = cli.json("topic", "describe", "life")
    assert described["configs"] == {"retention.ms": "3600000"}
    assert described["records"] == 2
    assert [(p["partition"], p["start_offset"], p["end_offset"]) for p in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 2),
    ]
    assert described["partitions"][1]["size_bytes"] > 0
    cli.out("topic", "alter", "life", "--partitions", "3", "-c", "cleanup.policy=compact", "--unset", "retention.ms")
    described = cli.json("topic", "describe", "life")
    assert described["configs"] == {"cleanup.policy": "compact"}
    assert len(described["partitions"]) == 3
    cli.fails("topic", "alter", "life", "--partitions", "1", code=1)
    assert cli.out("topic", "delete", "life", "--dry-run") == b"would delete life\n"
    assert cli.out("topic", "delete", "life") == b"deleted life\n"
    assert "life" not in {t["name"] for t in cli.json("topic", "list")}
    cli.fails("topic", "delete", "life", code=4)
    cli.out("topic", "delete", "life", "--if-exists")


def test_the_failure_of_one_topic_fails_no_other_and_sets_the_exit_code(cli: Cli) -> None:
    done = cli.run("topic", "create", "good-one", "bad name", "good-two", code=1)
    assert done.stdout == b"created good-one\ncreated good-two\n"
    assert b"bad name" in done.stderr
    assert b"1 of 3 failed" in done.stderr


def test_a_dry_run_creates_nothing(cli: Cli) -> None:
    assert cli.out("topic", "create", "not-yet", "--dry-run") == b"would create not-yet\n"
    assert "not-yet" not in {t["name"] for t in cli.json("topic", "list")}


def test_topics_are_listed_described_and_deleted_by_patterns(cli: Cli) -> None:
    cli.out("topic", "create", "pat-a", "pat-b", "pat-c", "other-a")
    assert [row["name"] for row in cli.json("topic", "list", "pat-*")] == ["pat-a", "pat-b", "pat-c"]
    assert [row["name"] for row in cli.json("topic", "list", "*-a", "pat-b")] == ["other-a", "pat-a", "pat-b"]
    assert "there is no topic pat-d; did you mean pat-" in cli.fails("topic", "list", "pat-d", code=4)
    assert [each["name"] for each in cli.json("topic", "describe", "pat-[ab]")] == ["pat-a", "pat-b"]
    said = cli.fails("topic", "delete", "pat-*", code=2)
    assert "3 topics match pat-*: pat-a, pat-b, pat-c" in said
    assert "--yes" in said
    assert cli.out("topic", "delete", "pat-*", "--yes") == b"deleted pat-a\ndeleted pat-b\ndeleted pat-c\n"
    assert cli.json("topic", "list", "other-*")


def test_changes_are_reported_in_json(cli: Cli) -> None:
    def results(*command: str) -> list[tuple[str, str]]:
        return [(each["name"], each["result"]) for each in cli.json(*command)]

    assert results("topic", "create", "json-1", "json-2") == [("json-1", "created"), ("json-2", "created")]
    assert results("topic", "create", "json-1", "--if-not-exists") == [("json-1", "exists")]
    assert results("topic", "alter", "json-1", "-p", "3") == [("json-1", "altered")]
    assert results("config", "set", "topic/json-1", "retention.ms=1h") == [("topic/json-1", "changed")]
    assert results("config", "unset", "topic/json-1", "retention.ms", "--dry-run") == [("topic/json-1", "would change")]
    cli.out("group", "seek", "json-group", "--topic", "json-2", "--to", "start")
    assert results("group", "delete-offsets", "json-group", "-t", "json-2", "--dry-run") == [
        ("json-2-0", "would delete")
    ]
    assert results("group", "delete", "json-group") == [("json-group", "deleted")]
    assert results("profile", "set", "json", cli.bootstrap) == [("json", "saved")]
    assert results("profile", "delete", "json") == [("json", "deleted")]
    assert results("cluster", "reassign", "cancel") == []
    half = cli.run("topic", "delete", "json-1", "json-absent", "-f", "json", code=4)
    assert json.loads(half.stdout) == [{"name": "json-1", "result": "deleted"}]
    (failure,) = json.loads(half.stderr)["error"]["failures"]
    assert failure["item"] == "topic json-absent"


def test_a_dry_run_of_trim_says_would(cli: Cli) -> None:
    cli.out("topic", "create", "trim-words")
    cli.out("produce", "trim-words", stdin=b"0\n1\n2\n")
    dry = cli.out("topic", "trim", "trim-words", "--to", "2", "--dry-run").decode()
    assert "would delete 2 offsets of trim-words; nothing was changed" in dry
    assert "deleted 2 offsets of trim-words\n" in cli.out("topic", "trim", "trim-words", "--to", "2").decode()


def test_trim_deletes_the_records_before_an_offset(cli: Cli) -> None:
    cli.out("topic", "create", "trimmed")
    cli.out("produce", "trimmed", stdin=b"0\n1\n2\n3\n4\n")
    assert cli.json("topic", "trim", "trimmed", "--to", "-2", "--dry-run")[0]["new_start_offset"] == 3
    assert cli.out("consume", "trimmed", "-n", "1") == b"0\n"
    shown = cli.out("topic", "trim", "trimmed", "--to", "-2")
    assert b"the space of whole segments is free within 6m0s (log.retention.check.interval.ms and " in shown
    assert cli.out("consume", "trimmed") == b"3\n4\n"
    assert cli.out("consume", "trimmed", "--from", "0", "--to", "4") == b"3\n"


def test_settings_are_read_changed_and_reset(cli: Cli) -> None:
    cli.out("topic", "create", "settings")
    cli.out("config", "set", "topic/settings", "retention.ms=60000", "cleanup.policy=compact")
    assert cli.out("config", "get", "topic/settings", "retention.ms") == b"60000\n"
    cli.out("config", "set", "topic/settings", "cleanup.policy+=delete")
    assert cli.out("config", "get", "topic/settings", "cleanup.policy") == b"compact,delete\n"
    cli.out("config", "unset", "topic/settings", "cleanup.policy")
    assert cli.out("config", "get", "topic/settings", "cleanup.policy") == b"delete\n"
    set_by_topic = {c["name"] for c in cli.json("config", "describe", "topic/settings") if c["source"] == "topic"}
    assert set_by_topic == {"retention.ms"}
    assert len(cli.json("config", "describe", "topic/settings", "--all")) > 20
    assert "retention.ms" in cli.fails("config", "set", "topic/settings", "retention.ms=soon", code=1)
    cli.fails("config", "set", "topic/settings", "no.such.setting=1", code=1)
    cli.fails("config", "get", "topic/settings", "no.such.setting", code=4)
    cli.fails("config", "set", "settings", "retention.ms=1", code=2)
    node_id = cli.json("cluster", "brokers")["brokers"][0]["id"]
    assert "log.segment.bytes" in {c["name"] for c in cli.json("config", "describe", f"broker/{node_id}", "--all")}


def test_durations_and_sizes_are_taken_where_a_setting_is(cli: Cli) -> None:
    cli.out("topic", "create", "units", "-c", "retention.ms=1h", "-c", "segment.bytes=64MiB")
    assert cli.json("topic", "describe", "units")["configs"] == {"retention.ms": "3600000", "segment.bytes": "67108864"}
    cli.out("topic", "alter", "units", "-c", "retention.ms=7d")
    assert cli.out("config", "get", "topic/units", "retention.ms") == b"604800000\n"
    cli.out("config", "set", "topic/units", "retention.ms=1h30m", "retention.bytes=1GiB")
    assert cli.out("config", "get", "topic/units", "retention.ms") == b"5400000\n"
    assert cli.out("config", "get", "topic/units", "retention.bytes") == b"1073741824\n"
    cli.out("topic", "list", "--timeout", "20s")
    assert "write seconds, or 500ms" in cli.fails("topic", "list", "--timeout", "soon", code=2)
    assert "a whole number of hours" in cli.fails("config", "set", "broker", "log.roll.hours=90m", code=2)
    assert "such as 90m or 7d" in cli.fails("config", "set", "topic/units", "retention.ms=7x", code=2)
    assert "such as 64KiB or 1GiB" in cli.fails("topic", "create", "u", "-c", "segment.bytes=1G", code=2)
    assert "such as 90m or 7d" in cli.fails("-X", "request.timeout.ms=7x", "topic", "list", code=2)


def test_a_dry_run_of_alter_changes_nothing(cli: Cli) -> None:
    cli.out("topic", "create", "alter-dry")
    said = cli.out("topic", "alter", "alter-dry", "-c", "retention.ms=1h", "-p", "3", "--dry-run")
    assert said == b"would alter alter-dry\n"
    described = cli.json("topic", "describe", "alter-dry")
    assert (described["configs"], len(described["partitions"])) == ({}, 1)
    cli.fails("topic", "alter", "alter-dry", "-c", "retention.ms=soon", "--dry-run", code=1)


def test_the_settings_of_all_brokers_are_shown(cli: Cli) -> None:
    node_id = cli.json("cluster", "brokers")["brokers"][0]["id"]
    of_one = {c["name"] for c in cli.json("config", "describe", f"broker/{node_id}", "--all")}
    of_all = cli.json("config", "describe", "broker", "--all")
    assert {c["name"] for c in of_all} >= of_one
    assert {c["broker"] for c in of_all if "broker" in c} == {node_id}
    assert b"log.segment.bytes" in cli.out("config", "describe", "broker", "--all")
    assert cli.out("config", "get", "broker", "log.segment.bytes") == b"1073741824\n"
    assert "no.such" in cli.fails("config", "get", "broker", "no.such", code=4)


def test_a_similar_name_is_suggested_for_a_topic_that_does_not_exist(cli: Cli) -> None:
    cli.out("topic", "create", "invoices")
    for command in (
        ("topic", "describe", "invoice"),
        ("consume", "invoice"),
        ("topic", "trim", "invoice", "--to", "1"),
    ):
        assert "there is no topic invoice; did you mean invoices?" in cli.fails(*command, code=4)


def test_produce_reports_a_topic_that_the_broker_creates(cli: Cli) -> None:
    cli.out("topic", "create", "payments")
    refused = cli.fails("produce", "paymants", "--no-create", code=4, stdin=b"x\n")
    assert "there is no topic paymants; did you mean payments?" in refused
    assert not [t for t in cli.json("topic", "list") if t["name"] == "paymants"]
    done = cli.run("produce", "paymants", stdin=b"x\n")
    assert b"there was no topic paymants; did you mean payments? The broker created it" in done.stderr
    assert cli.run("produce", "paymants", stdin=b"x\n").stderr == b""
    line = b'{"topic": "paymints", "value": "x"}\n'
    assert b"there was no topic paymints" in cli.run("produce", "--input", "json", stdin=line).stderr


def test_the_cluster_shows_its_brokers_health_directories_and_versions(cli: Cli) -> None:
    info = cli.json("cluster", "brokers")
    assert [b["address"] for b in info["brokers"]] == [cli.bootstrap]
    assert info["brokers"][0]["controller"]
    assert cli.json("cluster", "health")["healthy"]
    cli.out("produce", "kept-here", stdin=b"a\n")
    dirs = cli.json("cluster", "log-dirs")
    assert dirs[0]["online"]
    assert dirs[0]["total_bytes"] > dirs[0]["log_bytes"] > 0
    versions = {a["api"]: a for a in cli.json("cluster", "api-versions")}
    assert versions["Produce"]["max"] >= 9
    assert versions["Fetch"]["used"] >= 12


def test_profiles_name_clusters(cli: Cli) -> None:
    bootstrap, cli = cli.bootstrap, Cli("", cli.home)
    cli.out("profile", "set", "mine", bootstrap)
    assert cli.json("profile", "list") == [{"name": "mine", "brokers": bootstrap, "in_use": False}]
    assert cli.json("cluster", "brokers", "--profile", "mine")["brokers"][0]["address"] == bootstrap
    cli.out("profile", "use", "mine")
    assert cli.json("cluster", "brokers")["brokers"][0]["address"] == bootstrap
    cli.fails("cluster", "brokers", "--brokers", "127.0.0.1:1", code=3)
    cli.fails("cluster", "brokers", "--profile", "other", code=4)
    cli.out("profile", "rename", "mine", "ours")
    assert cli.json("profile", "list") == [{"name": "ours", "brokers": bootstrap, "in_use": True}]
    cli.out("profile", "set", "ours", bootstrap, "-s", "client.id=me", "-s", "request.timeout.ms=20s")
    assert cli.json("profile", "show", "ours")["settings"] == {"client.id": "me", "request.timeout.ms": "20000"}
    assert cli.json("cluster", "brokers")["brokers"][0]["address"] == bootstrap
    secured = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=u", "sasl.password=secret")
    cli.out("profile", "set", "secured", bootstrap, *(word for each in secured for word in ("-s", each)))
    assert b"secret" not in cli.out("profile", "show", "secured")
    assert "no such setting" in cli.fails("profile", "set", "x", bootstrap, "-s", "nothing=1", code=2)
    cli.fails("profile", "show", "mine", code=4)
    cli.out("profile", "delete", "secured")
    cli.out("profile", "delete", "ours")
    assert cli.json("profile", "list") == []


def test_a_benchmark_cleans_up_after_itself(cli: Cli) -> None:
    results = cli.json("bench", "--records", "2000", "--requests", "20", "--client", "own")
    assert [r["case"] for r in results] == ["produce", "consume", "latency"]
    assert all(r["records_per_s"] > 0 for r in results)
    assert results[2]["p99_ms"] >= results[2]["p50_ms"] > 0
    assert not [t for t in cli.json("topic", "list") if t["name"].startswith("ottla-bench")]


@pytest.mark.parametrize("client", ["own", "confluent"])
def test_a_benchmark_warms_up_and_reads_its_own_records_only(cli: Cli, client: str) -> None:
    topic = f"bench-{client}"
    cli.out("topic", "create", topic, "--partitions", "2")
    cli.out("produce", topic, stdin=b"of somewhere else\n" * 100)
    command = ("bench", "--records", "500", "--requests", "10", "--size", "1KiB", "--topic", topic, "--client", client)
    results = {row["case"]: row for row in cli.json(*command)}
    assert {case: row["records"] for case, row in results.items()} == {"produce": 500, "consume": 500, "latency": 10}
    assert cli.json("topic", "describe", topic)["records"] > 100 + 500 + 10


def test_names_are_completed_in_a_shell(cli: Cli) -> None:
    cli.out("topic", "create", "complete-a", "complete-b")
    cli.out("group", "seek", "complete-group", "--to", "end", "--topic", "complete-a")
    cli.out("profile", "set", "complete-profile", cli.bootstrap)

    def suggestions(*words: str, brokers: str = cli.bootstrap) -> list[str]:
        environment = {
            **Cli(brokers, cli.home).environment,
            "_OTTLA_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("ottla", *words)),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(program(), env=environment, capture_output=True, text=True, check=False, timeout=40)
        assert done.stderr == ""
        return done.stdout.split()

    assert suggestions("topic", "describe", "complete-") == ["complete-a", "complete-b"]
    assert suggestions("consume", "complete-b") == ["complete-b"]
    assert suggestions("group", "describe", "complete-") == ["complete-group"]
    assert suggestions("topic", "list", "--profile", "complete-") == ["complete-profile"]
    assert suggestions("config", "describe", "t") == ["topic/"]
    assert suggestions("config", "describe", "topic/complete-") == ["topic/complete-a", "topic/complete-b"]
    assert suggestions("config", "get", "topic/complete-a", "retention.") == ["retention.bytes", "retention.ms"]
    assert suggestions("config", "set", "topic/complete-a", "retention.m") == ["retention.ms="]
    assert suggestions("topic", "create", "x", "--config", "retention.") == ["retention.bytes=", "retention.ms="]
    assert suggestions("server", "-o", "log.retention.m") == ["log.retention.minutes=", "log.retention.ms="]
    assert suggestions("-X", "security.") == ["security.protocol="]
    assert suggestions("profile", "set", "p", "h:1", "--setting", "security.") == ["security.protocol="]
    assert suggestions("config", "get", "nothing", "retention.") == []
    assert suggestions("topic", "describe", "--brokers", "127.0.0.1:1", "complete-") == []
    assert suggestions("topic", "describe", "", brokers="127.0.0.1:1") == []
