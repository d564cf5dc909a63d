"""Starts programs without the names that Python has on Linux and not on macOS, by `sitecustomize`.

What it cannot remove is the kernel: how macOS behaves where the names are the same is not shown by it. `make check`
compares all names that Ottla uses with those of macOS (mypy with its platform).
"""

from __future__ import annotations

from pathlib import Path

NAMES = {
    "os": """EFD_CLOEXEC O_DIRECT O_NOATIME O_PATH O_RSYNC O_TMPFILE RWF_DSYNC RWF_NOWAIT copy_file_range eventfd
        eventfd_read eventfd_write fdatasync getrandom getresuid getxattr listxattr memfd_create pidfd_open pipe2
        posix_fadvise posix_fallocate removexattr sched_getaffinity sched_setaffinity setresuid setxattr splice""",
    "select": "epoll",
    "signal": "SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": """AF_NETLINK AF_PACKET MSG_MORE SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_PEERCRED TCP_CORK
        TCP_DEFER_ACCEPT TCP_QUICKACK TCP_USER_TIMEOUT""",
    "time": "CLOCK_BOOTTIME",
    "resource": "prlimit",
}
_PROGRAM = """
import importlib, sys
for module, names in {names!r}.items():
    for name in names.split():
        vars(importlib.import_module(module)).pop(name, None)
for name in {hidden!r}:
    sys.modules[name] = None
"""


def prefix_without(directory: Path, *hidden: str) -> tuple[str, ...]:
    """Return what starts a Python without the names of Linux, and without the modules that are hidden."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_PROGRAM.format(names=NAMES, hidden=hidden), encoding="utf-8")
    return "env", f"PYTHONPATH={directory}", "OTTLA_PLAIN=1"
