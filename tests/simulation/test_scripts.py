"""Runs the scripts on whole brokers: what each drives the cluster into is in `scripts.py`."""

from __future__ import annotations

import gc
import os
import pickle
import traceback

import pytest

from tests.simulation.run import Result, run
from tests.simulation.scripts import SCRIPTED_RUNS, ScriptedRun


def run_script(scripted: ScriptedRun) -> Result:
    """Run a script in a process of its own, which ends without ending the coroutines of killed brokers."""
    receive, give = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            gc.disable()
            outcome = run(scripted.scenario, scripted.script)
        except BaseException:  # noqa: BLE001 - the parent reports it
            outcome = Result(0, violations=[f"script: {traceback.format_exc()}"])
        os.write(give, pickle.dumps(outcome))
        os._exit(0)
    os.close(give)
    with os.fdopen(receive, "rb") as pipe:
        result: Result = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return result


@pytest.mark.parametrize("scripted", SCRIPTED_RUNS, ids=lambda scripted: scripted.name)
def test_a_script_loses_nothing(scripted: ScriptedRun) -> None:
    result = run_script(scripted)
    assert not result.violations, "\n".join([*result.timeline, *result.violations])
    assert result.acknowledged >= scripted.acknowledged
