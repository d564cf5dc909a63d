"""The choice of the Java that runs Spark, and the certificates it trusts."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from ottla.pipeline import java

TOOLS_OF_A_LAUNCHER = ("sh", "bash", "dirname", "basename", "ps", "ls", "env", "sed", "cat", "uname")


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "fits"), [("17.0.15", True), ("21.0.8", True), ("11.0.2", False), ("25", False), ("1.8.0_402", False)]
)
def test_only_java_17_and_21_fit(tmp_path: Path, version: str, fits: bool) -> None:
    home = fake_java(tmp_path / "jdk", version)
    assert java.machine_java({"JAVA_HOME": str(home), "PATH": ""}) == (home if fits else None)


def test_the_java_on_the_path_is_taken_when_java_home_does_not_fit(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "good", "21.0.1")
    found = java.machine_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert found == good


def test_a_java_that_does_not_run_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("this is no program")
    assert java.machine_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}) is None


def test_the_cache_is_the_users_own(tmp_path: Path) -> None:
    assert java.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "ottla"
    assert java.cache_directory({}) == Path.home() / ".cache" / "ottla"


def test_a_java_of_the_machine_keeps_its_own_trust_store(tmp_path: Path) -> None:
    assert java.trust_options(tmp_path / "jdk", {"XDG_CACHE_HOME": str(tmp_path)}, tmp_path) == []


@pytest.mark.external
@pytest.mark.slow
def test_without_a_java_the_packaged_one_runs_and_trusts_the_machines_authorities(tmp_path: Path) -> None:
    """Only the tools Spark's launcher needs are on the path, and no Java among them."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS_OF_A_LAUNCHER:
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    cache = os.environ.get("XDG_CACHE_HOME")  # downloaded once for all runs, as a user has it
    environment = {"PATH": str(tools)} | ({"XDG_CACHE_HOME": cache} if cache else {})
    said: list[str] = []
    home = java.java_home(environment, said.append)
    assert home.is_relative_to(java.cache_directory(environment))
    command = [str(home / "bin" / "java"), "-Xmx32m", "--add-modules=jdk.incubator.vector", "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert java.version_in(ran.stderr) == 21
    said.clear()
    assert java.java_home(environment, said.append) == home
    assert said == [], "a second run downloads nothing"
    authority = trustme.CA()
    bundle, other = tmp_path / "bundle.pem", trustme.CA()
    bundle.write_bytes(authority.cert_pem.bytes() + b"# a comment\n" + other.cert_pem.bytes())
    options = java.trust_options(home, environment | {"SSL_CERT_FILE": str(bundle)}, tmp_path)
    store = next(option.partition("=")[2] for option in options if option.startswith("-Djavax.net.ssl.trustStore="))
    keytool = [str(home / "bin" / "java"), "-m", "java.base/sun.security.tools.keytool.Main", "-list"]
    listed = subprocess.run(
        [*keytool, "-keystore", store, "-storepass", "changeit"], capture_output=True, text=True, check=True
    )
    for one in (authority, other):
        certificate = hashlib.sha256(ssl.PEM_cert_to_DER_cert(one.cert_pem.bytes().decode())).digest()
        assert certificate.hex(":").upper() in listed.stdout
    assert listed.stdout.count("trustedCertEntry") == 2
