"""`ottla top` and `ottla group watch`: samples in a terminal and elsewhere, and the plot."""

from __future__ import annotations

import json
import os
import pty
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.main import run
from ottla.cli.plot import plot
from ottla.cli.top_tables import COLUMNS, Kind, View
from ottla.testing import Kafka
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def topic(broker: Kafka, cli: CommandLine, request: pytest.FixtureRequest) -> str:
    """A topic with ten records, of which a group named like it has read four."""
    name = str(request.node.name).translate(str.maketrans("[]", ".."))[:100]
    broker.create_topic(name, partitions=2)
    broker.produce_many(name, [f"v{n}" for n in range(10)])
    cli.out("consume", name, "--group", name, "--count", "4")
    return name


@contextmanager
def writing(broker: Kafka, topic: str) -> Iterator[None]:
    """Records are written as long as this lasts."""
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            broker.produce(topic, "x")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_top_shows_topics_and_groups_by_rate_as_json(cli: CommandLine, broker: Kafka, topic: str) -> None:
    with writing(broker, topic):
        found = cli.json("top", "--once", "--interval", "200ms")
    assert found["topics"][0]["topic"] == topic
    assert found["topics"][0]["written_per_s"] > 0
    group = next(each for each in found["groups"] if each["group"] == topic)
    assert (group["state"], group["members"], group["read_per_s"]) == ("Empty", 0, 0.0)
    assert group["lag"] >= 6
    assert group["catches_up_s"] is None
    assert group["lag_s"] > 0
    assert found["topics"][0]["bytes_per_s"] > 0
    assert found["topics"][0]["size_bytes"] > 0
    assert {each["topic"] for each in found["partitions"]} == {topic}
    assert found["partitions"][0]["leader"] == 1
    (only,) = found["broker_activity"]
    assert (only["broker"], only["written_per_s"] > 0, only["bytes_per_s"] > 0) == (1, True, True)


def test_top_shows_the_tables_and_the_order_that_are_asked_for(cli: CommandLine, broker: Kafka, topic: str) -> None:
    with writing(broker, topic):
        shown = cli.out("top", "--once", "--interval", "200ms", "--show", "partitions,groups", "--sort", "lag_time")
    assert "LAG TIME*" in shown
    assert "BUSIEST" not in shown
    assert "PARTITION" in shown
    assert "--sort nothing: use one of" in cli.fails("top", "--once", "--sort", "nothing", code=2)
    assert "--show disks: use some of brokers" in cli.fails("top", "--once", "--show", "disks", code=2)


def test_top_prints_a_sample_after_the_other_where_there_is_no_terminal(cli: CommandLine, topic: str) -> None:
    shown = cli.out("top", "--topic", topic, "--group", topic, "--count", "2", "--interval", "100ms")
    assert shown.count("1 brokers, 1 topics, 1 groups\n") == 2
    assert shown.count(f"{topic}  ") >= 2
    lines = cli.out("top", "--topic", topic, "--count", "2", "--interval", "100ms", "--format", "json").splitlines()
    assert [json.loads(line)["topics"][0]["topic"] for line in lines] == [topic, topic]


def test_a_pattern_that_selects_nothing_is_an_error(cli: CommandLine) -> None:
    assert "no group matches none-*" in cli.fails("top", "--once", "--group", "none-*", code=4)


def test_a_group_is_watched_in_a_line_for_each_sample(cli: CommandLine, topic: str) -> None:
    lines = cli.out("group", "watch", topic, "--count", "2", "--interval", "100ms").splitlines()
    assert "Empty  0 members  lag 6  lag time" in lines[0]
    assert "read 0.0/s  written 0.0/s  does not catch up" in lines[1]
    samples = cli.out("group", "watch", topic, "--count", "2", "--interval", "100ms", "--format", "json").splitlines()
    first, second = map(json.loads, samples)
    assert (first["group"], first["lag"], first["read_per_s"]) == (topic, 6, None)
    assert (second["read_per_s"], second["written_per_s"]) == (0.0, 0.0)
    assert second["lag_seconds"] >= 0
    assert f"did you mean {topic}?" in cli.fails("group", "watch", topic[:-1], "--once", code=4)


@pytest.mark.parametrize("arguments", [("top",), ("group", "watch")])
def test_on_a_terminal_the_numbers_are_in_place(
    broker: Kafka, topic: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*arguments, *([topic] if "watch" in arguments else []), "--once", "--interval", "100ms"]
    shown = on_a_terminal(command, monkeypatch)
    assert "\x1b[?1049h" in shown, "the screen of before comes back at the end"
    assert topic[:20] in shown
    assert ("6 ┤" in shown) == ("watch" in arguments)


def on_a_terminal(command: list[str], monkeypatch: pytest.MonkeyPatch, *, keys: Sequence[tuple[str, str]] = ()) -> str:
    """Run a command whose standard output is a terminal; returns what it was sent.

    With `keys` its standard input is one too: each key is pressed once its text has come after the key before.
    """
    ours, theirs = pty.openpty()
    received = bytearray()

    def read() -> None:
        left, since = list(keys), 0
        try:
            while text := os.read(ours, 4096):
                received.extend(text)
                if left and left[0][0].encode() in received[since:]:
                    since = len(received)
                    os.write(ours, left.pop(0)[1].encode())
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        if keys:
            monkeypatch.setattr("sys.stdin", terminal)
        assert run(command) == 0
    reader.join()
    os.close(ours)
    return received.decode()


@given(st.lists(st.floats(0.01, 1e9), min_size=1, max_size=200), st.integers(20, 100), st.integers(2, 10))
def test_a_plot_fits_and_shows_all_that_is_more_than_nothing(values: list[float], width: int, height: int) -> None:
    lines = plot(values, width=width, height=height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    label, _, bars = lines[-1].partition("┤")
    assert ("█" in lines[0]) or max(values[-len(bars) :]) < max(values)
    assert len(bars) == min(len(values), width - len(label) - 1)
    assert " " not in bars


def test_keys_choose_tables_sort_and_end() -> None:
    view = View()
    assert not view.press("g")
    assert view.kinds == (Kind.GROUPS,)
    for _ in range(2):
        view.press("s")
    assert view.sort == "state"
    for _ in COLUMNS[Kind.GROUPS]:
        view.press("s")
    assert view.sort == "group", "after the last column comes the order of the rates, and the first one"
    assert not view.press("x")
    assert view.press("q")


def test_keys_are_read_from_a_terminal(broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = (("BROKER", "g"), ("LAG TIME", "s"), ("GROUP*", "t"), ("BUSIEST", "q"))
    assert "q ends" in on_a_terminal(["top", "--interval", "100ms"], monkeypatch, keys=keys)
