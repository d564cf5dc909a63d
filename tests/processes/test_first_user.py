"""`ottla server --init-user` gives a cluster its first user; the password is never an argument."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli.errors import CommandFailed
from ottla.cli.server_start import ServerOptions, start

OTTLA = Path(sys.executable).with_name("ottla")


def serve_and_ask(tmp_path: Path, *arguments: str, stdin: str = "") -> tuple[int, str]:
    """Start a broker with these arguments; ask it for its brokers as alice; the outcome of the question."""
    ready = tmp_path / "ready"
    command = [
        str(OTTLA),
        "server",
        "--data",
        str(tmp_path / "data"),
        "--format",
        "json",
        "-o",
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "--ready-file",
        str(ready),
        *arguments,
    ]
    broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdin is not None and broker.stdout is not None
        broker.stdin.write(stdin)
        broker.stdin.close()
        line = broker.stdout.readline()
        assert '"bootstrap"' in line, line
        bootstrap = json.loads(line)["bootstrap"]
        properties = (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=SCRAM-SHA-512",
            "sasl.username=alice",
            "sasl.password=first secret",
        )
        asked = subprocess.run(
            [
                str(OTTLA),
                *(part for line in properties for part in ("-X", line)),
                "cluster",
                "brokers",
                "--brokers",
                bootstrap,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return asked.returncode, asked.stdout + asked.stderr
    finally:
        broker.terminate()
        broker.wait(30)
        if broker.stdout is not None:
            broker.stdout.close()


def test_the_password_comes_of_standard_input_or_of_a_file(tmp_path: Path) -> None:
    code, output = serve_and_ask(tmp_path / "a", "--init-user", "alice", stdin="first secret\n")
    assert code == 0, output
    code, output = serve_and_ask(tmp_path / "a", "--init-user", "alice", stdin="another\n")
    assert code == 0, output
    password = tmp_path / "password"
    password.write_text("first secret\n")
    code, output = serve_and_ask(
        tmp_path / "b", "--init-user", "alice", "--init-password-file", str(password), "--workers", "1"
    )
    assert code == 0, output


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(CommandFailed, match="both read standard input"):
        start(ServerOptions(init_user="alice", while_stdin_open=True))
    with pytest.raises(CommandFailed, match="has no user"):
        start(ServerOptions(init_password_file=Path("x")))
    with pytest.raises(CommandFailed, match="cannot be read"):
        start(ServerOptions(init_user="alice", init_password_file=Path("/nonexistent")))
