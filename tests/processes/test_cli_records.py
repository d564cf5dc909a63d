"""`ottla produce` and `ottla consume` as processes, against a running broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.client.partitioner import partition_for_key
from tests.conftest import Broker
from tests.processes.cli_runner import Cli

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(broker: Broker, tmp_path: Path) -> Cli:
    return Cli(broker.bootstrap, tmp_path)


@pytest.fixture
def topic(cli: Cli, request: pytest.FixtureRequest) -> str:
    name = request.node.name.split("[")[0][-200:]
    cli.out("topic", "create", name, "--partitions", "3")
    return str(name)


def test_lines_are_consumed_in_order_within_a_partition(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "--partition", "1", stdin=b"one\ntwo\r\n\nlast without an end")
    assert cli.out("consume", topic, "--format", "%p:%o %v\\n") == b"1:0 one\n1:1 two\n1:2 \n1:3 last without an end\n"


def test_a_key_before_the_separator_chooses_the_partition_of_kafkas_java_clients(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "-K", ":", stdin=b"a:1:x\nb:2\nc:3\n")
    found = dict(line.split(b" ") for line in cli.out("consume", topic, "-f", "%k=%v %p\\n").splitlines())
    assert set(found) == {b"a=1:x", b"b=2", b"c=3"}
    assert all(int(p) == partition_for_key(kv.split(b"=")[0], 3) for kv, p in found.items())


def test_json_lines_of_consume_are_produced_again_without_loss(cli: Cli, topic: str) -> None:
    lines: list[dict[str, Any]] = [
        {"partition": 0, "timestamp": 1431856800000, "key": "k", "value": "v", "headers": []},
        {"partition": 1, "timestamp": 1, "key": None, "value": None, "headers": [{"key": "h", "value": None}]},
        {"partition": 2, "timestamp": 2, "key": "", "value": "", "headers": [{"key": "", "value": ""}]},
        {"partition": 2, "timestamp": 1, "key_base64": "/w==", "value_base64": "AP8=", "headers": []},
        {
            "partition": 0,
            "timestamp": 1431856800001,
            "key": "ключ",
            "value": 'line\nend "quoted" \u2028 \U0001f600',
            "headers": [{"key": "a", "value": "1"}, {"key": "a", "value_base64": "/wA="}, {"key": "a", "value": "1"}],
        },
    ]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    cli.out("produce", topic, "--input", "json", stdin=text)
    first = cli.out("consume", topic, "--format", "json")
    copy = f"{topic}.copy"
    cli.out("topic", "create", copy, "--partitions", "3")
    cli.out("produce", copy, "--input", "json", stdin=first)
    second = cli.out("consume", copy, "--format", "json")

    def by_place(printed: bytes) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in printed.splitlines()]
        return sorted(({**f, "topic": ""} for f in found), key=lambda f: (f["partition"], f["offset"]))

    assert by_place(first) == by_place(second)
    without_place = [{k: v for k, v in f.items() if k not in {"topic", "offset"}} for f in by_place(first)]
    assert without_place == sorted(lines, key=lambda f: int(f["partition"]))


def test_with_input_file_each_file_is_one_record(cli: Cli, topic: str, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(range(256)))
    cli.out("produce", topic, str(tmp_path / "blob"), "--input", "file", "--key", "k", "-H", "type=blob", "-H", "empty")
    assert cli.out("consume", topic, "-f", "%k %h %v") == b"k type=blob,empty " + bytes(range(256))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_are_consumed(cli: Cli, codec: str) -> None:
    topic = f"compressed-{codec}"
    cli.out("topic", "create", topic)
    lines = b"".join(b"a line that repeats itself %d\n" % n for n in range(2000))
    cli.out("produce", topic, "--compression", codec, stdin=lines)
    assert cli.out("consume", topic) == lines


def test_ranges_by_offset_by_count_and_from_the_end(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "-p", "0", stdin=b"".join(b"%d\n" % n for n in range(100)))

    def read(*options: str) -> list[int]:
        return [int(line) for line in cli.out("consume", topic, *options).split()]

    assert read("--from", "90", "--to", "93") == [90, 91, 92]
    assert read("--from", "-2") == [98, 99]
    assert read("--from", "+98") == [98, 99]
    assert read("--from", "10", "--to", "+2") == [10, 11]
    assert read("--to", "-98") == [0, 1]
    assert read("--from", "-10", "--count", "3") == [90, 91, 92]
    assert read("--from", "1000") == []
    assert read("--partition", "1,2") == []


def test_consume_reads_a_range_of_time(cli: Cli, topic: str) -> None:
    for day in (16, 17, 18):
        cli.out("produce", topic, "-p", "0", "--timestamp", f"2015-05-{day}T10:00", stdin=b"%d\n" % day)
    cli.out("produce", topic, "-p", "0", stdin=b"now\n")
    assert cli.out("consume", topic, "--from", "@2015-05-17", "--to", "@2015-05-18T10:00") == b"17\n"
    assert cli.out("consume", topic, "--from", "-1h") == b"now\n"
    assert cli.out("consume", topic, "--to", "-1h") == b"16\n17\n18\n"
    assert (
        cli.out("consume", topic, "--to", "@1431856800000", "-f", "%T %d\\n")
        == b"1431770400000 2015-05-16T10:00:00.000Z\n"
    )


def test_following_prints_what_arrives_and_stops_quietly_on_ctrl_c(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "-p", "0", stdin=b"before\n")
    with cli.running("consume", topic, "--follow", "--from", "start") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"before\n"
        cli.out("produce", topic, "-p", "0", stdin=b"after\n")
        assert follower.stdout.readline() == b"after\n"
        follower.send_signal(signal.SIGINT)
        _, complaint = follower.communicate(timeout=10)
        assert follower.returncode == 130
        assert complaint == b""


def test_a_closed_output_pipe_ends_consume_without_a_message(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, stdin=b"".join(b"%d some text to fill the pipe\n" % n for n in range(20_000)))
    with cli.running("consume", topic) as consumer:
        assert consumer.stdout is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.wait(timeout=20) == 141
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""


def test_ctrl_c_ends_produce_without_a_message_while_the_input_is_idle(cli: Cli, topic: str) -> None:
    with cli.running("produce", topic, "--verbose", "--partition", "0") as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        with cli.running("consume", topic, "--follow", "--from", "start") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"first\n"  # a slow writer's records leave without waiting for more
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=10) == 130
        assert producer.stderr is not None
        assert producer.stderr.read() == b""


def test_an_invalid_line_is_named_by_its_number_and_the_lines_before_it_are_written(cli: Cli, topic: str) -> None:
    complaint = cli.fails("produce", topic, "-i", "json", stdin=b'{"value":"good"}\n\n{"value":3}\n', code=5)
    assert "standard input line 3: value must be a string or null, not 3" in complaint
    assert cli.out("consume", topic) == b"good\n"


def test_an_unknown_partition_is_named_with_its_line_and_the_next_action(cli: Cli, topic: str) -> None:
    line = b'{"value":"x","partition":7}\n'
    complaint = cli.fails("produce", topic, "-i", "json", stdin=line, code=4)
    assert "line 1: topic" in complaint
    assert "has no partition 7; it has 3" in complaint
    assert "--repartition" in complaint
    cli.out("produce", topic, "-i", "json", "--repartition", stdin=line)
    assert cli.out("consume", topic) == b"x\n"


def test_a_record_that_is_too_large_is_named_by_its_line_and_the_others_are_written(cli: Cli) -> None:
    topic = "small-records"
    cli.out("topic", "create", topic, "-c", "max.message.bytes=2000")
    complaint = cli.fails("produce", topic, stdin=b"small\n" + b"x" * 5000 + b"\nsmall too\n", code=1)
    assert "standard input line 2" in complaint
    assert b"small\n" in cli.out("consume", topic)


def test_many_lines_keep_their_keys_headers_partitions_and_order(cli: Cli, topic: str) -> None:
    lines = [b"k%d:v%d" % (n % 7, n) for n in range(30_000)]
    shown = cli.out("produce", topic, "-K", ":", "-H", "h=x", "--verbose", stdin=b"\n".join(lines))
    found = [json.loads(line) for line in cli.out("consume", topic, "--format", "json").splitlines()]
    assert sorted(int(record["value"][1:]) for record in found) == list(range(30_000))
    assert {(r["key"], r["headers"][0]["value"]) for r in found} == {(f"k{n}", "x") for n in range(7)}
    by_key: dict[str, list[int]] = {}
    for record in found:
        by_key.setdefault(record["key"], []).append(int(record["value"][1:]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    written = {(r["partition"], r["offset"]): int(r["value"][1:]) for r in found}
    rows = [line.split(b"\t") for line in shown.splitlines()]
    assert [written[int(p), int(offset)] for _, p, offset in rows] == list(range(30_000))


_COUNT_CALLS = """
import cProfile, pstats, sys
from ottla.cli.main import run
profile = cProfile.Profile()
assert profile.runcall(run, sys.argv[1:]) == 0
calls = pstats.Stats(profile).stats.items()
print(sum(times for (file, _, _), (_, times, *_) in calls if "/ottla/cli/" in file or "/ottla/client/" in file))
"""


def test_producing_calls_few_functions_per_line(cli: Cli, topic: str, tmp_path: Path) -> None:
    # a rate depends on the machine, the number of calls does not
    text = tmp_path / "lines"
    text.write_bytes(b"a line of a log file\n" * 20_000)

    def calls(files: int) -> int:
        command = [sys.executable, "-c", _COUNT_CALLS, "produce", topic, *[str(text)] * files]
        return int(subprocess.run(command, env=cli.environment, capture_output=True, check=True).stdout)

    assert (calls(3) - calls(1)) / 40_000 < 5


def test_the_summary_counts_every_partition(cli: Cli, topic: str) -> None:
    found = json.loads(cli.out("produce", topic, "-p", "2", "--format", "json", stdin=b"a\nb\n"))
    assert found["records"] == 2
    assert found["partitions"] == [{"topic": topic, "partition": 2, "records": 2, "first_offset": 0, "last_offset": 1}]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_records_are_written_with_every_value_of_acks(cli: Cli, acks: str) -> None:
    topic = f"acks-{acks}"
    cli.out("topic", "create", topic)
    cli.out("produce", topic, "--acks", acks, stdin=b"x\n")
    assert cli.out("consume", topic, "--follow", "--from", "start", "-n", "1") == b"x\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["consume", "no-such-topic"], 4, "topic no-such-topic"),
        (["consume", "t", "--from", "5x"], 2, "--from: '5x' is not an offset"),
        (["consume", "t", "--from", "10", "--to", "5"], 2, "--from is after --to"),
        (["consume", "t", "--tail", "5", "--from", "1"], 2, "--tail cannot be combined with --from"),
        (["consume", "t", "--grep", "("], 2, "--grep: '(' is not a regular expression"),
        (["consume", "t", "--partition", "1-x"], 2, "--partition: '1-x' is not a list of partitions"),
        (["consume", "t", "--format", "%q"], 2, "unknown %q at position 1"),
        (["produce"], 2, "the topic is missing"),
        (["produce", "t", "no-such-file"], 4, "no-such-file: No such file"),
        (["produce", "t", "--acks", "2"], 2, "--acks 2: use all, 1 or 0"),
        (["produce", "t", "--timestamp", "soon"], 2, "--timestamp: 'soon' is not a time"),
        (["topic", "list", "--brokers", "127.0.0.1:1"], 3, "127.0.0.1:1: connection refused"),
        (["topic", "list", "--brokers", "a b"], 2, "'a b' is not a broker address"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_a_user_error_prints_one_message_and_sets_its_exit_code(
    cli: Cli, arguments: list[str], code: int, says: str
) -> None:
    assert says in cli.fails(*arguments, code=code)


def test_several_topics_are_read_by_names_and_patterns(cli: Cli) -> None:
    for name in ("multi-a", "multi-b", "multi-c"):
        cli.out("topic", "create", name)
        cli.out("produce", name, stdin=f"of {name}\n".encode())
    read = cli.out("consume", "multi-*", "--format", "%t %v\\n").splitlines()
    assert sorted(read) == [b"multi-a of multi-a", b"multi-b of multi-b", b"multi-c of multi-c"]
    assert sorted(cli.out("consume", "multi-c", "multi-a").splitlines()) == [b"of multi-a", b"of multi-c"]
    both = cli.out("consume", "multi-[ab]", "--group", "of-several").splitlines()
    assert sorted(both) == [b"of multi-a", b"of multi-b"]
    assert "no topic matches none-*" in cli.fails("consume", "none-*", code=4)


def test_the_last_records_are_counted_over_all_partitions(cli: Cli, topic: str) -> None:
    lines = [{"partition": n % 3, "timestamp": 1_431_856_800_000 + n, "value": f"v{n}"} for n in range(30)]
    cli.out("produce", topic, "--input", "json", stdin="\n".join(map(json.dumps, lines)).encode())
    assert cli.out("consume", topic, "--tail", "4") == b"v26\nv27\nv28\nv29\n"
    assert cli.out("consume", topic, "--tail", "2", "--partition", "1") == b"v25\nv28\n"
    assert cli.out("consume", topic, "--tail", "1000").count(b"\n") == 30
    assert cli.out("consume", topic, "--tail", "3", "--grep", "^v.$") == b"v7\nv8\nv9\n", "the last ones that match"
    assert cli.out("consume", topic, "--tail", "3", "--grep", "nothing") == b""
    with cli.running("consume", topic, "--tail", "1", "--follow") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"v29\n"
        cli.out("produce", topic, stdin=b"later\n")
        assert follower.stdout.readline() == b"later\n"


def test_grep_selects_by_key_and_value_before_records_are_counted(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "-K", ":", "--partition", "0", stdin=b"a:x1\nb:x2\na:y3\nc:x4\n")
    cli.out("produce", topic, "--input", "json", stdin=b'{"partition": 0, "key": "k", "value": null}')
    assert cli.out("consume", topic, "--grep", "^a$") == b"x1\ny3\n"
    assert cli.out("consume", topic, "--grep", "x[24]") == b"x2\nx4\n"
    assert cli.out("consume", topic, "--grep", "x", "--count", "2") == b"x1\nx2\n"
    assert cli.out("consume", topic, "--grep", "x", "--count", "2", "--group", "grep") == b"x1\nx2\n"
    assert cli.out("consume", topic, "--group", "grep") == b"y3\nx4\n\n", (
        "committed after the last one that was printed"
    )
