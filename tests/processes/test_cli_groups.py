"""`ottla group` and `ottla consume --group` as processes, against a running broker."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.processes.cli_runner import Cli

pytestmark = pytest.mark.slow
WAIT_S = 40


@pytest.fixture
def cli(broker: Broker, tmp_path: Path) -> Cli:
    return Cli(broker.bootstrap, tmp_path)


@pytest.fixture
def topic(cli: Cli, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with ten records each."""
    name = str(request.node.name)[:200]
    cli.out("topic", "create", name, "--partitions", "2")
    for partition in ("0", "1"):
        cli.out(
            "produce", name, "-p", partition, stdin=b"".join(b"%s-%d\n" % (partition.encode(), n) for n in range(10))
        )
    return name


def test_a_group_resumes_at_its_committed_offsets(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    first = cli.out("consume", topic, "--group", group, "--count", "7").splitlines()
    rest = cli.out("consume", topic, "--group", group).splitlines()
    assert len(first) == 7
    assert sorted(first + rest) == sorted(b"%d-%d" % (p, n) for p in (0, 1) for n in range(10))
    assert cli.out("consume", topic, "--group", group) == b""
    described = cli.json("group", "describe", group)
    assert described["state"] == "Empty"
    assert described["lag"] == 0
    assert described["lag_seconds"] == 0
    assert {(p["partition"], p["committed"], p["end_offset"]) for p in described["partitions"]} == {
        (0, 10, 10),
        (1, 10, 10),
    }


def test_lag_is_reported_in_messages_and_as_the_age_of_the_first_unread_record(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("group", "seek", group, "--to", "end", "--topic", topic)
    cli.out("produce", topic, "-p", "1", "--timestamp", "2015-05-17T10:00", stdin=b"old\nolder\n")
    parts = {p["partition"]: p for p in cli.json("group", "describe", group)["partitions"]}
    assert (parts[0]["lag"], parts[0]["lag_seconds"]) == (0, 0)
    assert parts[1]["lag"] == 2
    ten_years_s = 10 * 365 * 86_400
    assert parts[1]["lag_seconds"] > ten_years_s
    table = cli.out("group", "describe", group).decode()
    assert "LAG TIME" in table
    assert "lag          2" in table


def test_seek_sets_the_offsets_of_a_group_without_members_and_has_a_dry_run(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("consume", topic, "--group", group)
    dry = cli.json("group", "seek", group, "--to", "-3", "--dry-run")
    assert dry == [
        {"topic": topic, "partition": 0, "committed": 10, "new_offset": 7},
        {"topic": topic, "partition": 1, "committed": 10, "new_offset": 7},
    ]
    assert cli.json("group", "describe", group)["lag"] == 0
    cli.out("group", "seek", group, "--to", "-3", "--partition", "1")
    assert cli.out("consume", topic, "--group", group) == b"1-7\n1-8\n1-9\n"
    cli.out("group", "seek", group, "--to", "start")
    assert cli.json("group", "describe", group)["lag"] == 20
    cli.out("group", "seek", group, "--to", "-1h")
    assert cli.json("group", "describe", group)["lag"] == 20
    cli.out("group", "seek", group, "--to", "5")
    assert cli.json("group", "describe", group)["lag"] == 10


def test_two_members_share_the_partitions_until_one_leaves(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    options = ("consume", topic, "--group", group, "--follow", "--format", "%p %v\\n")
    with cli.running(*options) as one, cli.running(*options) as two:
        _until_members(cli, group, 2)
        described = cli.json("group", "describe", group)
        assert sorted(m["partitions"] for m in described["members"]) == [[f"{topic}-0"], [f"{topic}-1"]]
        assert "stop them before seeking" in cli.fails("group", "seek", group, "--to", "start", code=1)
        cli.fails("group", "delete", group, code=1)
        two.send_signal(signal.SIGINT)
        assert two.wait(timeout=WAIT_S) == 130
        _until_members(cli, group, 1)
        cli.out("produce", topic, "-p", "0", stdin=b"late-0\n")
        cli.out("produce", topic, "-p", "1", stdin=b"late-1\n")
        seen = _read_until(one, {b"0 late-0\n", b"1 late-1\n"})
        assert {b"0 late-0\n", b"1 late-1\n"} <= seen
        one.send_signal(signal.SIGINT)
        assert one.wait(timeout=WAIT_S) == 130
    assert cli.json("group", "describe", group)["lag"] == 0


def test_groups_are_listed_and_deleted(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("consume", topic, "--group", group)
    assert group in {g["group"] for g in cli.json("group", "list")}
    cli.out("group", "delete", group, "--dry-run")
    assert cli.out("group", "delete", group) == f"deleted {group}\n".encode()
    assert group not in {g["group"] for g in cli.json("group", "list")}
    assert "no group" in cli.fails("group", "describe", group, code=4)
    cli.fails("group", "delete", group, code=4)


def test_groups_are_filtered_by_type_and_state(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("consume", topic, "--group", group)
    for options, is_listed in (
        (("--type", "classic"), True),
        (("--type", "share"), False),
        (("--state", "empty"), True),
        (("--state", "Stable"), False),
        (("--type", "consumer", "--type", "classic", "--state", "Empty"), True),
    ):
        assert (group in {g["group"] for g in cli.json("group", "list", *options)}) is is_listed, options


def test_members_and_lag_are_shown_alone_and_members_can_be_removed(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    with cli.running("consume", topic, "--group", group, "--follow"):
        _until_members(cli, group, 1)
        (member,) = cli.json("group", "members", group)
        assert (member["group"], member["partitions"]) == (group, [f"{topic}-0", f"{topic}-1"])
        rows = cli.json("group", "lag", group)
        assert [(row["group"], row["partition"], row["end_offset"]) for row in rows] == [(group, 0, 10), (group, 1, 10)]
        assert "LAG TIME" in cli.out("group", "lag", group).decode().splitlines()[0]
        assert "--instance" in cli.fails("group", "remove-members", group, code=2)
        cli.fails("group", "remove-members", group, "--instance", "stranger", code=1)
        assert cli.out("group", "remove-members", group, "--member", member["member"]).startswith(b"removed ")


def test_lag_counts_partitions_without_a_commit(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("group", "seek", group, "--to", "4", "--topic", topic, "--partition", "0")
    described = cli.json("group", "describe", group)
    assert described["lag"] == 6 + 10
    parts = {p["partition"]: p for p in described["partitions"]}
    assert (parts[1]["committed"], parts[1]["lag"]) == (None, 10)
    assert parts[1]["lag_seconds"] > 0
    assert {g["group"]: g["lag"] for g in cli.json("group", "list")}[group] == 16


def test_consume_as_a_group_commits_where_it_began(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    with cli.running("consume", topic, "--group", group, "--from", "end", "--follow") as reader:
        _until_members(cli, group, 1)
        cli.out("produce", topic, "-p", "0", stdin=b"new\n")
        assert _read_until(reader, {b"new\n"}) == {b"new\n"}
        reader.kill()  # no commit at the end
        reader.wait()
    parts = {p["partition"]: p for p in cli.json("group", "describe", group)["partitions"]}
    assert (parts[1]["committed"], parts[1]["lag"]) == (10, 0)
    assert (parts[0]["committed"], parts[0]["lag"]) == (10, 1)


def test_many_groups_are_listed_described_and_deleted_by_patterns(cli: Cli, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for number, name in enumerate(names):
        cli.out("group", "seek", name, "--to", str(number), "--topic", topic)
    rows = cli.json("group", "list", f"{topic}-*")
    assert [(row["group"], row["lag"], row["members"]) for row in rows] == [
        (names[0], 20, 0),
        (names[1], 18, 0),
        (names[2], 16, 0),
    ]
    assert "LAG" in cli.out("group", "list", f"{topic}-*").decode().splitlines()[0]
    described = cli.json("group", "describe", f"{topic}-[12]")
    assert [each["group"] for each in described] == names[1:]
    assert [each["lag"] for each in cli.json("group", "describe", names[0], names[2])] == [20, 16]
    assert "no group matches none-*" in cli.fails("group", "list", "none-*", code=4)
    said = cli.fails("group", "delete", f"{topic}-*", code=2)
    assert "3 groups match" in said
    assert "--yes" in said
    assert cli.out("group", "delete", f"{topic}-*", "--dry-run").count(b"would delete ") == 3
    assert cli.out("group", "delete", f"{topic}-*", "--yes").count(b"deleted ") == 3
    cli.out("group", "seek", f"{topic}-8", "--to", "end", "--topic", topic)
    assert f"there is no group {names[0]}; did you mean {topic}-8?" in cli.fails("group", "describe", names[0], code=4)


def test_the_offsets_of_a_topic_can_be_deleted(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    cli.out("group", "seek", group, "--to", "end", "--topic", topic)
    said = cli.out("group", "delete-offsets", group, "--topic", topic, "--partition", "0", "--dry-run")
    assert said == f"would delete the offset of {topic}-0\n".encode()
    said = cli.out("group", "delete-offsets", group, "--topic", topic, "--partition", "0")
    assert said == f"deleted the offset of {topic}-0\n".encode()
    assert cli.json("group", "describe", group)["lag"] == 10
    assert "no committed offsets there" in cli.fails("group", "delete-offsets", group, "--topic", "other", code=4)


def test_a_dry_run_of_seek_says_would(cli: Cli, topic: str) -> None:
    group = f"g-{topic}"
    dry = cli.out("group", "seek", group, "--to", "end", "--topic", topic, "--dry-run").decode()
    assert f"would set the offsets of 2 partitions of group {group}; nothing was changed" in dry
    done = cli.out("group", "seek", group, "--to", "end", "--topic", topic).decode()
    assert f"set the offsets of 2 partitions of group {group}\n" in done
    assert "would set" not in done


def _until_members(cli: Cli, group: str, count: int) -> None:
    """Wait until the group is stable with this many members; each look is a process, so no loop runs hot."""
    for _ in range(60):
        done = subprocess.run(
            _command("group", "describe", group, "--format", "json"),
            capture_output=True,
            env=cli.environment,
            check=False,
        )
        if done.returncode == 0:
            found = cli.json("group", "describe", group)
            if found["state"] == "Stable" and len(found["members"]) == count:
                return
    pytest.fail(f"group {group} never had {count} members")


def _command(*arguments: str) -> list[str]:
    from tests.processes.cli_runner import program

    return [*program(), *arguments]


def _read_until(process: subprocess.Popen[bytes], wanted: set[bytes]) -> set[bytes]:
    assert process.stdout is not None
    seen: set[bytes] = set()
    while not wanted <= seen:
        line = process.stdout.readline()
        assert line, "the consumer ended"
        seen.add(line)
    return seen
