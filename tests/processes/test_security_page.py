"""Every command of docs/security.md, in order, in one shell, with other ports."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_ports

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
AT_THE_END = "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT\n"
REFUSED = """
refused() { if "$@" < alice.password; then echo "allowed: $*" >&2; exit 1; fi; }
refused ottla topic create more --profile alice
refused ottla produce payments --profile alice
refused ottla consume orders --profile alice --group other -n 1
refused ottla acl list --profile alice
refused ottla cluster brokers --brokers 127.0.0.1:9092 --timeout 5
refused ottla -X sasl.password=wrong cluster brokers --profile alice
"""
TIMEOUT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("cluster")]


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_every_command_of_the_page_works_and_nothing_else_is_allowed(tmp_path: Path) -> None:
    port = free_ports(3)
    script = (AT_THE_END + "\n".join((*BLOCKS, "echo ---- >&2", REFUSED))).replace("9092", str(port))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTTLA_") or name == "OTTLA_PLAIN"},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
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
    cluster = tmp_path / "cluster"
    logs = "\n".join(file.read_text(errors="replace")[-2000:] for file in sorted(cluster.glob("*.log")))
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:], logs)
    lines = done.stdout.splitlines()
    assert f"cluster ready: 127.0.0.1:{port},127.0.0.1:{port + 1},127.0.0.1:{port + 2}" in lines
    assert "an order" in lines
    topics = lines[lines.index("created payments") + 1 :]
    assert [line.split()[0] for line in topics[:2]] == ["NAME", "orders"]
    refusals = done.stderr.partition("----")[2]
    assert refusals.count("AUTHORIZATION_FAILED") >= 3, refusals
    assert "SASL_AUTHENTICATION_FAILED" in refusals
    assert "Traceback" not in done.stderr + logs
    passwords = [line.partition("=")[2] for line in (cluster / "users").read_text().splitlines()]
    passwords.append((tmp_path / "alice.password").read_text().strip())
    shown = done.stdout + done.stderr + logs + (tmp_path / "up.log").read_text()
    assert not [password for password in passwords if password in shown]
    for file in (*cluster.glob("*.properties"), cluster / "users", *cluster.glob("certs/*")):
        assert stat.S_IMODE(file.stat().st_mode) == (0o644 if file.name == "ca.pem" else 0o600), file
