"""Parses the setting `zookeeper.connect`. It does not import kazoo."""

from __future__ import annotations

from typing import NamedTuple


class ZooKeeperConnect(NamedTuple):
    """Holds the addresses of an ensemble, and the path below which a cluster's whole tree is."""

    hosts: str  # host:port, separated by commas
    chroot: str  # empty or /a/b

    def __str__(self) -> str:
        return self.hosts + self.chroot


def parse_connect(text: str) -> ZooKeeperConnect:
    """Parse `host:port,host:port/chroot`. Raises ValueError.

    >>> parse_connect("a:2181, b:2182/kafka/")
    ZooKeeperConnect(hosts='a:2181,b:2182', chroot='/kafka')
    """
    servers, slash, path = text.partition("/")
    hosts = [each.strip() for each in servers.split(",")]
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not (name and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ValueError(f"{host!r} is not host:port")
    chroot = (slash + path.strip()).rstrip("/")
    if "//" in chroot:
        raise ValueError(f"the path {chroot} contains an empty name")
    return ZooKeeperConnect(",".join(hosts), chroot)
