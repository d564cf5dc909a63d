"""Hosts of ACLs: every host, addresses and ranges (KIP-1276)."""

from __future__ import annotations

import pytest

from ottla.security.host_patterns import host_matches, range_problem


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["10.0.0.1", "::1", "unknown"], []),
        ("10.0.0.1", ["10.0.0.1"], ["10.0.0.2", "::1", "::10.0.0.1"]),
        ("2001:db8::1", ["2001:db8::1", "2001:0db8:0:0:0:0:0:1"], ["2001:db8::2", "10.0.0.1"]),
        ("0:0:0:0:0:0:0:1", ["::1"], ["0.0.0.1"]),
        ("192.168.0.0/24", ["192.168.0.0", "192.168.0.1", "192.168.0.255"], ["192.168.1.0", "::192.168.0.1"]),
        ("192.168.0.77/24", ["192.168.0.0", "192.168.0.255"], ["192.168.1.0"]),
        ("10.1.2.3/32", ["10.1.2.3"], ["10.1.2.2", "10.1.2.4"]),
        ("10.1.2.2/31", ["10.1.2.2", "10.1.2.3"], ["10.1.2.1", "10.1.2.4"]),
        ("0.0.0.0/0", ["10.1.2.3", "255.255.255.255"], ["::1", "unknown"]),
        ("2001:db8::/32", ["2001:db8::1", "2001:db8:ffff::"], ["2001:db9::", "10.0.0.1"]),
        ("::/0", ["::1", "fe80::1%eth0"], ["10.0.0.1"]),
        ("::1/128", ["::1", "0:0:0:0:0:0:0:1"], ["::2"]),
        ("fe80::/10", ["fe80::1%eth0"], ["2001:db8::1"]),
        ("10.0.0.0/33", [], ["10.0.0.0"]),
        ("10.0.0.0/", [], ["10.0.0.0"]),
        ("example.org", ["example.org"], ["10.0.0.1"]),
        ("10.*", [], ["10.0.0.1"]),
        ("", [], ["10.0.0.1"]),
    ],
)
def test_a_host_of_an_acl_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    for host in matching:
        assert host_matches(pattern, host), host
    for host in others:
        assert not host_matches(pattern, host), host


@pytest.mark.parametrize(
    "pattern",
    ["10.0.0.0/8", "010.0.0.0/08", "0.0.0.0/0", "10.1.2.3/32", "::/0", "2001:db8::/+32", "[::1]/64", "fe80::1%eth0/64"],
)
def test_a_range_is_valid(pattern: str) -> None:
    assert range_problem(pattern) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0.0/33",
        "10.0.0.256/8",
        "10.0.0/8",
        "10.0.0.0/8/8",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "/8",
        "/",
        "a/8",
        "10.0.0.0/٨",
        "2001:db8::/129",
        "2001:db8::/x",
        "2001:db8::/",
        "g::/8",
        "::ffff:10.0.0.1/96",
        "2001:db8::/32/32",
        "::/1000000000000",
        "::/-1",
        "::/99999999999999999999999",
        ".*/8",
        "*/8",
    ],
)
def test_a_range_is_not_valid(pattern: str) -> None:
    assert range_problem(pattern)
    assert not host_matches(pattern, "10.0.0.0")
    assert not host_matches(pattern, "2001:db8::")
