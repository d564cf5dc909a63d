"""Runs simulations: many seeds, one seed again, or the smallest scenario that still fails.

python -m tests.simulation --seeds 300                   seeds 1 to 300
python -m tests.simulation --seed 17 --verbose           one seed again, with its time line
python -m tests.simulation --seed 17 --shrink            remove what the failure does not need; prints the JSON
python -m tests.simulation --scenario FILE               a saved scenario
python -m tests.simulation --plant 6 --seeds 2000        with a bug on purpose: which seed finds it
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds to run")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--scenario", type=Path, help="run a saved scenario")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--replication", type=int, default=3)
    parser.add_argument("--kinds", default="", help="kinds of faults, with commas; each seed has some of them")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--twice", type=int, default=0, help="run so many of the seeds twice and compare the traces")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")))
    parser.add_argument("--plant", help="plant one of the bugs of planted_bugs.py")
    parser.add_argument("--planted-bugs", action="store_true", help="plant each of them, one after the other")
    parser.add_argument("--bugs", help="with --planted-bugs: only those with these numbers, with commas")
    parser.add_argument("--scripts", action="store_true", help="run the scripts before the seeds")
    parser.add_argument("--script", help="run one script")
    parser.add_argument("--page-cache", action="store_true", help="only runs in which records count before a sync")
    parser.add_argument("--secured", action="store_true", help="with SCRAM and ACLs, which change meanwhile")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    _in_the_right_process(is_plain=options.planted_bugs or options.plant is not None)
    if options.planted_bugs:
        return _plant_all(options)
    if options.plant:
        from tests.simulation import planted_bugs

        planted_bugs.plant(options.plant)
    if options.script:
        return _run_scripts(options.script, is_verbose=options.verbose)
    if options.scenario is not None:
        return _one(options.scenario.read_text(), options)
    if options.seed is not None:
        return _one(_scenario(options, options.seed).to_json(), options)
    return _campaign(options)


def _in_the_right_process(*, is_plain: bool) -> None:
    """Start this command again unless hashes do not vary in this process and it runs the form that is needed.

    A planted bug is another text of a source, which only the plain form reads.
    """
    needed = {"PYTHONHASHSEED": "0"} | ({"OTTLA_PLAIN": "1"} if is_plain else {})
    if any(os.environ.get(name) != value for name, value in needed.items()):
        environment = {**os.environ, **needed}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environment)


def _scenario(options: argparse.Namespace, seed: int) -> Any:
    from tests.simulation.scenario import draw

    kinds = tuple(options.kinds.split(",")) if options.kinds else ()
    return draw(
        seed,
        brokers=options.brokers,
        replication=options.replication,
        kinds=kinds,
        is_page_cache=options.page_cache,
        is_secured=options.secured,
    )


def _in_child(text: str, *, is_verbose: bool = False, is_second: bool = False, script: Any = None) -> tuple[int, int]:
    """Fork a process that runs a scenario, with a script in place of its faults if there is one; returns its process id and the pipe with its result.

    The objects of a second run have other addresses: the order of a set of objects must not decide anything.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    code = 1
    try:
        from tests.simulation.run import Result, run
        from tests.simulation.scenario import Scenario

        if is_verbose:
            import logging

            logging.basicConfig(level=logging.INFO, format="%(message)s")
        if is_second:
            scattered = [bytearray(size % 1009) for size in range(20_000)]
            del scattered[::3]
        gc.disable()  # a collection ends coroutines of killed processes
        try:
            result = asdict(run(Scenario.from_json(text), script))
        except AssertionError as error:
            if script is None:
                raise
            if is_verbose:
                import traceback

                traceback.print_exc()
            result = asdict(Result(0, violations=[f"script: {error!r}"]))
        with os.fdopen(send, "w") as pipe:
            json.dump(result, pipe)
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here in any case
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _result(pid: int, receive: int) -> dict[str, Any]:
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    if not text:
        return {"seed": -1, "violations": ["run: the process failed"], "trace_hash": 0, "effects": {}, "timeline": []}
    read: dict[str, Any] = json.loads(text)
    return read


def _one(text: str, options: argparse.Namespace) -> int:
    _warm_up(is_secured='"is_secured": true' in text)
    result = _result(*_in_child(text, is_verbose=options.verbose))
    _report(result, text if options.verbose else None)
    if result["violations"] and options.shrink:
        small = _shrink(text, result)
        print("the smallest scenario that fails:")
        print(small)
        _report(_result(*_in_child(small)), small)
    return 1 if result["violations"] else 0


def _report(result: dict[str, Any], text: str | None) -> None:
    if text is not None:
        print("\n".join(result["timeline"]))
    for line in result["violations"][:20]:
        print("  ", line)
    print(
        f"seed {result['seed']}: {len(result['violations'])} violations, {result.get('acknowledged', 0)} of "
        f"{result.get('sends', 0)} records acknowledged, {result.get('virtual_s', 0):.1f} s in "
        f"{result.get('real_s', 0):.2f} s, trace {result['trace_hash']:08x}"
    )


def _shrink(text: str, result: dict[str, Any]) -> str:
    """Return the smallest scenario found that fails in one of the same ways."""
    from tests.simulation.scenario import Scenario, smaller

    kinds = {line.partition(":")[0] for line in result["violations"]}
    scenario = Scenario.from_json(text)
    found = True
    while found:
        found = False
        for candidate in smaller(scenario):
            tried = _result(*_in_child(candidate.to_json()))
            if kinds & {line.partition(":")[0] for line in tried["violations"]}:
                scenario, found = candidate, True
                print(f"  fails with {len(scenario.faults)} faults", flush=True)
                break
    return scenario.to_json()


def _warm_up(*, is_secured: bool = False) -> None:
    """Run once without faults before the forks, so that no run imports modules and all begin alike."""
    from tests.simulation.run import run
    from tests.simulation.scenario import Scenario

    run(
        Scenario(
            0,
            brokers=1,
            partitions=1,
            replication=1,
            min_isr=1,
            producers=1,
            transactional=1,
            committers=1,
            duration_s=6.0,
            is_secured=is_secured,
        )
    )


class _Progress:
    """Shows on stderr how many runs have ended: in one line on a terminal, else in a line a minute.

    Without a thread that draws, because every run is a fork of this process.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._is_terminal = sys.stderr.isatty()
        self._began = self._shown = time.perf_counter()

    def show(self, done: int, failed: int) -> None:
        """Show the state, unless it was shown a moment ago."""
        now = time.perf_counter()
        if now - self._shown < (0.2 if self._is_terminal else 60):
            return
        self._shown = now
        left = (now - self._began) / done * (self._total - done)
        line = f"{done:,} of {self._total:,} runs, {failed} failed, about {left / 60:.0f} minutes left"
        print(
            f"\r{line}\x1b[K" if self._is_terminal else line,
            end="" if self._is_terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _campaign(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    _warm_up(is_secured=options.secured)
    failed: list[int] = []
    effects: Counter[str] = Counter()
    hashes: dict[int, int] = {}
    different: list[int] = []
    done = 0
    seeds = range(options.first, options.first + options.seeds)
    if options.scripts and (found := _run_scripts()):
        return found
    progress = _Progress(len(seeds) + min(options.twice, len(seeds)))
    for result in _run_all(seeds, options):
        done += 1
        progress.show(done, len(failed))
        effects.update(result["effects"])
        seed = result["seed"]
        if hashes.setdefault(seed, result["trace_hash"]) != result["trace_hash"]:
            different.append(seed)
        if result["violations"] and seed not in failed:
            failed.append(seed)
            _report(result, None)
            sys.stdout.flush()
            if not options.keep_going:
                break
    progress.end()
    took = time.perf_counter() - began
    print(f"{done} runs in {took:.1f} s, {done / took:.2f} a second; {len(failed)} failed: {sorted(failed)[:50]}")
    print("faults with an effect:", ", ".join(f"{kind} {count}" for kind, count in sorted(effects.items())))
    if different:
        print(f"the same seed gave another run: {different}")
    return 1 if failed or different else 0


def _run_scripts(name: str = "", *, is_verbose: bool = False) -> int:
    """Run the scripts, or one of them, until one fails. Returns 1 if one does."""
    from tests.simulation.scripts import SCRIPTED_RUNS

    for scripted in SCRIPTED_RUNS:
        if name not in {"", scripted.name}:
            continue
        result = _result(*_in_child(scripted.scenario.to_json(), is_verbose=is_verbose, script=scripted.script))
        if is_verbose:
            print("\n".join(result["timeline"]))
            print(f"script {scripted.name}: {result['acknowledged']} of {result['sends']} records acknowledged")
        if result["violations"]:
            print("\n".join(f"   {line}" for line in result["violations"][:20]))
            print(f"script {scripted.name}: {len(result['violations'])} violations")
            return 1
    return 0


def _plant_all(options: argparse.Namespace) -> int:
    """Plant each bug in processes of its own: for its script, and for seeds until one finds it; prints a table.

    What finds it must find nothing without the bug. Returns 1 if neither finds a bug.
    """
    from tests.simulation.planted_bugs import BUGS

    wanted = None if options.bugs is None else options.bugs.split(",")
    missed = []
    print("| Bug | Script | Seed | Checkers | Time |\n| --- | --- | --- | --- | --- |", flush=True)
    bugs = [bug for bug in BUGS if wanted is None or str(bug.number) in wanted]
    for bug in bugs:
        began = time.perf_counter()
        script, found = _look("--plant", bug.number, "--script", bug.script) if bug.script else ("", "")
        if script and _look("--script", bug.script)[0]:
            script = ""  # it fails without the bug, too
        same = ["--brokers", bug.brokers, "--replication", bug.replication, "--jobs", options.jobs]
        same += ["--kinds", bug.kinds] if bug.kinds else []
        same += ["--page-cache"] if bug.is_page_cache else []
        same += ["--secured"] if bug.is_secured else []
        seeds = ["--seeds", options.seeds or bug.seeds, "--from", bug.first, "--seconds", options.seconds]
        seed, found_by_seed = _look("--plant", bug.number, *seeds, *same) if not bug.schedules else _schedule(bug)
        if seed.isdigit() and _look("--seeds", 1, "--from", seed, *same)[0]:
            seed = "fails without the bug, too"
        if not script and not seed.isdigit() and not (bug.schedules and seed):
            missed.append(bug.number)
        took = time.perf_counter() - began
        print(
            f"| {bug.number} {bug.title} | {script} | {seed or 'none'} | {found_by_seed or found} | {took:.0f} s |",
            flush=True,
        )
    print(f"{len(bugs) - len(missed)} of {len(bugs)} planted bugs were found; not found: {missed}")
    return 1 if missed else 0


def _look(*arguments: object) -> tuple[str, str]:
    """Run this command in another process; returns the script or the seed that failed, and the checkers that saw it."""
    done = _main_again(*arguments)
    lines = done.stdout.splitlines()
    names = [line.split(":")[0].split()[1] for line in lines if line.startswith(("seed ", "script "))]
    checkers = Counter(line.split(":")[0].strip() for line in lines if line.startswith("   "))
    return (names[0], ", ".join(checkers)) if done.returncode == 1 and names else ("", "")


def _schedule(bug: Any) -> tuple[str, str]:
    """Run the schedules of a test with a bug; returns the test that failed, with its seed, if any, and its file."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n0",
        "-p",
        "tests.simulation.planting_plugin",
        bug.schedules,
    ]
    environment = {**os.environ, "OTTLA_PLANTED_BUG": str(bug.number)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    failed = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return (f"schedule {failed[0]}", bug.schedules) if done.returncode == 1 and failed else ("", "")


def _main_again(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run this command in another process."""
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run_all(seeds: range, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the seeds in `jobs` processes, the first ones twice; yields the results in the order of the seeds."""
    running: list[tuple[int, int, int]] = []
    deadline = time.perf_counter() + options.seconds
    try:
        for number, seed in enumerate([*seeds, *seeds[: options.twice]]):
            if time.perf_counter() > deadline:
                break
            running.append((seed, *_in_child(_scenario(options, seed).to_json(), is_second=number >= len(seeds))))
            if len(running) >= options.jobs:
                yield _named(*running.pop(0))
        while running:
            yield _named(*running.pop(0))
    finally:
        for _, pid, receive in running:
            _result(pid, receive)


def _named(seed: int, pid: int, receive: int) -> dict[str, Any]:
    return {**_result(pid, receive), "seed": seed}


if __name__ == "__main__":
    sys.exit(main())
