"""Runs simulations of today's broker and client: seeds without a violation, and equal runs for equal seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import planted_bugs
from tests.simulation.scenario import Scenario, draw, smaller
from tests.simulation.scripts import SCRIPTED_RUNS
from tests.support import form
from tests.support.examples import examples

ROOT = Path(__file__).resolve().parents[2]
QUICK_BUGS = [planted_bugs.find(name) for name in ("1", "7")]
"""Those that a few seeds find: the short version of `make planted-cluster-bugs`."""
BUGS_WITH_SCRIPTS = [planted_bugs.find(name) for name in ("2", "4", "13", "28", "33", "35")]
SAVED = sorted((Path(__file__).parent / "scenarios").glob("*.json"))


def simulate(*arguments: str, status: int = 0, timeout_s: float = 280, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == status, output[-4000:]
    return output


@pytest.mark.slow
def test_one_broker_loses_nothing() -> None:
    output = simulate("--brokers", "1", "--seeds", "20", "--twice", "3")
    assert "23 runs" in output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, 121, 40))
def test_three_brokers_lose_nothing(first: int) -> None:
    seeds = min(examples(80), 40)
    output = simulate("--seeds", str(seeds), "--from", str(first), "--twice", "3", timeout_s=800)
    assert f"{seeds + 3} runs" in output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_allowed_by_rights_of_too_long_ago() -> None:
    seeds = min(examples(40), 20)
    output = simulate("--secured", "--seeds", str(seeds), "--twice", "2", timeout_s=500)
    assert f"{seeds + 2} runs" in output


@pytest.mark.slow
@pytest.mark.skipif(not form.is_compiled(), reason="the broker is not compiled on this machine")
@pytest.mark.parametrize("seed", ["4", "11", "23"])
def test_a_seed_gives_the_same_run_in_the_compiled_and_in_the_plain_form(seed: str) -> None:
    traces = {simulate("--seed", seed, OTTLA_PLAIN=plain).partition("trace ")[2] for plain in ("", "1")}
    assert len(traces) == 1
    assert "" not in traces


@pytest.mark.slow
@pytest.mark.parametrize("bug", QUICK_BUGS, ids=lambda bug: str(bug.number))
def test_a_planted_bug_is_found(bug: planted_bugs.PlantedBug) -> None:
    arguments = (
        "--plant",
        bug.number,
        "--seeds",
        5,
        "--from",
        bug.first,
        "--brokers",
        bug.brokers,
        "--replication",
        bug.replication,
    )
    assert "violations" in simulate(*map(str, arguments), status=1)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS_WITH_SCRIPTS, ids=lambda bug: str(bug.number))
def test_the_script_of_a_planted_bug_finds_it(bug: planted_bugs.PlantedBug) -> None:
    assert "violations" in simulate("--plant", str(bug.number), "--script", bug.script, status=1)


@pytest.mark.slow
@pytest.mark.parametrize("saved", SAVED, ids=lambda saved: saved.stem)
def test_a_scenario_that_failed_once_does_not_fail_again(saved: Path) -> None:
    simulate("--scenario", str(saved))


def test_a_scenario_survives_json() -> None:
    for seed in range(20):
        scenario = draw(seed)
        assert Scenario.from_json(scenario.to_json()) == scenario


def test_a_smaller_scenario_has_less() -> None:
    scenario = draw(3)
    sizes = [len(each.faults) for each in smaller(scenario)]
    assert min(sizes) == 0
    assert all(each != scenario for each in smaller(scenario))


@pytest.mark.parametrize("bug", planted_bugs.BUGS, ids=lambda bug: str(bug.number))
def test_the_text_of_each_planted_bug_is_there(bug: planted_bugs.PlantedBug) -> None:
    assert not bug.script or bug.script in {scripted.name for scripted in SCRIPTED_RUNS}
    assert not bug.schedules or (ROOT / bug.schedules).is_file()
    for file, text in planted_bugs.texts(bug).items():
        compile(text, file, "exec")
        assert text != (planted_bugs.SOURCE / "ottla" / file).read_text()
