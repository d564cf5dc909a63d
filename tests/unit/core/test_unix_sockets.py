"""Addresses of unix sockets, with what Linux offers and without."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ottla.core.unix_sockets import socket_address

LONG = "directory-with-a-long-name" * 8


@pytest.mark.parametrize("directory", ["short", LONG])
@pytest.mark.parametrize("has_o_path", [True, False], ids=["Linux", "macOS"])
def test_a_socket_is_bound_and_found_whatever_the_length_of_its_path(
    directory: str, has_o_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_o_path:
        monkeypatch.delattr(os, "O_PATH")
    path = tmp_path / directory / "a.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        with socket_address(path) as address:
            listening.bind(address)
            assert len(os.fsencode(address)) <= 103
        listening.listen()
        assert path.is_socket()
        with socket_address(path) as address:
            client.connect(address)
    links = Path("/proc/self/fd").iterdir()
    left = [link for link in links if os.path.realpath(link) == str(path.parent)]
    assert not left, "a descriptor of the directory stays open"
