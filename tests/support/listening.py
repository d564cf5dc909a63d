"""Lists the addresses at which a process listens, from Linux's /proc."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENING = "0A"


def listening_addresses(pid: int) -> list[tuple[IPv4Address | IPv6Address, int]]:
    """Return address and port of every TCP socket that a process listens at."""
    process = Path(f"/proc/{pid}")
    own = set()
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            own.add(str(link.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENING and f"socket:[{inode}]" in own:
                host, _, port = local.partition(":")
                words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
                found.append((ip_address(b"".join(words)), int(port, 16)))
    return found
