"""Every command of docs/cluster.md, in order, in one shell, with other ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port, free_ports

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
AT_THE_END = "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT\n"
TIMEOUT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("cluster")]


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    """The records survive a killed broker, a new one, a drained one, and a rolling restart."""
    first = free_ports(4)
    ports = {"9091": free_port(), "9092": first, "9093": first + 1, "9094": first + 2, "9095": first + 3}
    script = AT_THE_END + "\n".join(BLOCKS)
    for port, other in ports.items():
        script = script.replace(port, str(other))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTTLA_") or name == "OTTLA_PLAIN"},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    logs = "\n".join(file.read_text(errors="replace")[-2000:] for file in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:], logs)
    lines = done.stdout.splitlines()
    assert f"cluster ready: 127.0.0.1:{first},127.0.0.1:{first + 1},127.0.0.1:{first + 2}" in lines
    assert lines.count("2000") == 2, "the last record after the kill, and the number of records after the upgrade"
    assert "no replicas are being moved" in done.stderr
    assert lines[-1].strip() == "100"
    assert "Traceback" not in done.stderr + logs
