"""Finds Prometheus and its promtool, for tests of rules and dashboards; `make fetch` gets Debian's package."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.jvm import cache_directory
from tests.support.scrapes import Scraped

RULES = Path(__file__).parents[2] / "packaging" / "prometheus" / "ottla.rules.yml"
PACKAGE = "prometheus"


class PrometheusNotFound(Exception):
    """Reports how to get Prometheus."""


def directory() -> Path:
    """Return where the unpacked package is."""
    return cache_directory() / "prometheus"


def fetch() -> None:
    """Download and unpack Debian's package, which needs no root: its programs are static."""
    if shutil.which("promtool") or (directory() / "usr/bin/promtool").exists():
        return
    directory().mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", PACKAGE], cwd=directory(), check=True, capture_output=True)
    (package,) = directory().glob(f"{PACKAGE}_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(directory())], check=True)


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Raises PrometheusNotFound."""
    path = directory() / "usr/bin" / name
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        raise PrometheusNotFound(f"{name} is not here: make fetch, or install Debian's package {PACKAGE}")
    return found


Minute = Mapping[str, Scraped | None]
"""The pages of one minute by the name of the broker; None: it did not answer."""


def firing_alerts(minutes: Sequence[Minute], path: Path, names: Iterable[str]) -> set[str]:
    """Return the alerts that fire at the end of these minutes, by Prometheus itself.

    One alert at a time is asked for, because promtool says what is wrong and not what is.
    """
    series = _series(minutes)
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": f'group(ALERTS{{alertstate="firing",alertname="{name}"}}) or vector(0)',
                    "eval_time": f"{len(minutes) - 1}m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for name in sorted(names)
    ]
    return {name for name, test in zip(sorted(names), tests, strict=True) if _passes(test, path)}


def _passes(test: Mapping[str, Any], path: Path) -> bool:
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "got:" in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode == 0


def _series(minutes: Sequence[Minute]) -> list[dict[str, str]]:
    """Return what was scraped as series of promtool, of those metrics that the rules name."""
    rules = RULES.read_text(encoding="utf-8")
    values: dict[str, list[str]] = {}
    for number, minute in enumerate(minutes):
        for instance, page in minute.items():
            own = f'instance="{instance}",job="ottla"'
            _put(values, f"up{{{own}}}", number, "0" if page is None else "1")
            for (name, labels), value in () if page is None else page.samples.items():
                if name in rules:
                    text = "".join(f",{key}={json.dumps(label)}" for key, label in sorted(labels))
                    _put(values, f"{name}{{{own}{text}}}", number, repr(value))
    return [
        {"series": series, "values": " ".join(found + ["_"] * (len(minutes) - len(found)))}
        for series, found in values.items()
    ]


def _put(values: dict[str, list[str]], series: str, number: int, value: str) -> None:
    found = values.setdefault(series, [])
    found += ["_"] * (number - len(found))
    found.append(value)
