"""A stand-in for `systemctl` in tests of documentation: starts, stops and restarts the service of one unit file.

It reads the unit file, so the unit is tested too: ExecStartPre, ExecStart, Type=notify, KillSignal. A file with the
process id remembers the running service. Usage: fake_systemctl.py DIRECTORY VERB [--now] NAME
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT_S = 40


def settings_of(unit: Path) -> dict[str, list[str]]:
    """The settings of a unit file; a name may be given several times."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def start(directory: Path, unit: Path) -> int:
    """Run the service and wait for READY=1, as `Type=notify` means."""
    settings = settings_of(unit)
    assert settings["Type"] == ["notify"]
    for command in settings.get("ExecStartPre", []):
        subprocess.run(shlex.split(command), check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    address = str(directory / "notify")
    with contextlib.suppress(FileNotFoundError):
        Path(address).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (directory / "journal").open("ab") as journal:
        manager.bind(address)
        manager.settimeout(TIMEOUT_S)
        process = subprocess.Popen(
            shlex.split(settings["ExecStart"][0]),
            env={**os.environ, "NOTIFY_SOCKET": address},
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=journal,
            start_new_session=True,
        )
        (directory / "pid").write_text(str(process.pid), encoding="ascii")
        fields = manager.recv(4096).decode().split("\n")
    return 0 if "READY=1" in fields else 1


def stop(directory: Path) -> int:
    """Send SIGTERM and wait for the end; the process is a child of another one, so it is looked for."""
    file = directory / "pid"
    if not file.exists():
        return 0
    pid = int(file.read_text(encoding="ascii"))
    file.unlink()
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat")
        try:
            if status.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] == "Z":
                return 0
        except OSError:
            return 0
        time.sleep(0.02)
    return 1


def main() -> int:
    """Do what the arguments name."""
    directory = Path(sys.argv[1])
    verb, *names = [argument for argument in sys.argv[2:] if not argument.startswith("-")]
    if verb == "daemon-reload":
        return 0
    unit = directory / f"{names[0]}.service"
    match verb:
        case "start" | "enable":
            return start(directory, unit)
        case "stop":
            return stop(directory)
        case "restart":
            return stop(directory) or start(directory, unit)
        case _:
            print(f"fake_systemctl: {verb}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
