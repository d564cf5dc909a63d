from __future__ import annotations

import pytest

from ottla.metadata_store.zookeeper_connect import ZooKeeperConnect, parse_connect


def test_servers_and_chroot_are_separated() -> None:
    assert parse_connect("a:1") == ZooKeeperConnect("a:1", "")
    assert parse_connect(" a:1 ,[::1]:2/x/y") == ZooKeeperConnect("a:1,[::1]:2", "/x/y")
    assert str(parse_connect("a:1,b:2/x")) == "a:1,b:2/x"
    assert parse_connect("a:1/") == ZooKeeperConnect("a:1", "")


@pytest.mark.parametrize("text", ["a", "a:", "a:x", "a:0", "a:65536", ":1", "a:1,", "a:1//x", "/x"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|empty name"):
        parse_connect(text)
