"""Starts real servers of the S3 protocol, each with one bucket in a directory: versitygw (Go), S3Proxy (Java).

Versitygw is built once by `go install` from the module proxy, the jars come from Maven Central; all are kept in the
cache directory. S3Proxy, on a file system, is here because it ignores the conditions of conditional puts. A server can
be killed and started again on the same port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ottla.pipeline.lake.object_store import ObjectStore
from ottla.pipeline.lake.store_settings import StoreSettings
from tests.support.jvm import SHORT_RUN, JavaNotFound, cache_directory, java
from tests.support.processes import free_port, until

VERSITYGW, S3PROXY = "v1.8.0", "2.7.0"
ACCESS_KEY, SECRET_KEY, BUCKET, REGION = "test-access-key", "secret-key-of-the-test-server", "lakes", "us-east-1"
_START_S = 240.0


class NoServer(Exception):
    """A server that cannot be had on this machine."""


@dataclass
class S3Server:
    """A server with one bucket, kept in a directory."""

    name: str
    data: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        (self.root / BUCKET).mkdir(parents=True, exist_ok=True)
        if not self.port:
            self.port = free_port()

    @property
    def root(self) -> Path:
        """The directory of the buckets."""
        return self.data / "buckets"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
        }

    def store(self, prefix: str) -> ObjectStore:
        """Return the store of a prefix; credentials come from the environment."""
        return ObjectStore(f"s3://{BUCKET}/{prefix}", StoreSettings(endpoint=self.endpoint, region=REGION))

    def start(self) -> None:
        """Start it, and wait until it listens. Raises NoServer."""
        command, environment = COMMANDS[self.name](self)
        with (self.data / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
        until(lambda: self._listens() or self._ended(), timeout_s=_START_S, what=f"the start of {self.name}")
        if self._ended():
            raise NoServer(f"{self.name}: {(self.data / 'server.log').read_text()[-500:]}")

    def kill(self) -> None:
        """Kill it with -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@contextlib.contextmanager
def running(name: str, data: Path) -> Iterator[S3Server]:
    """Run a server, whose credentials are in this process's environment meanwhile. Skips the test without the server."""
    server = S3Server(name, data)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in server.environment.items():
            patch.setenv(variable, value)
        try:
            server.start()
            yield server
        except (NoServer, JavaNotFound) as error:
            pytest.skip(str(error))
        finally:
            server.kill()


def _versitygw(server: S3Server) -> tuple[list[str], dict[str, str]]:
    command = [str(versitygw()), "--port", f"127.0.0.1:{server.port}", "--region", REGION, "--quiet"]
    sidecar = server.data / "attributes"
    sidecar.mkdir(exist_ok=True)
    command += ["posix", "--sidecar", str(sidecar), str(server.root)]
    return command, {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}


def _s3proxy(server: S3Server) -> tuple[list[str], dict[str, str]]:
    properties = server.data / "s3proxy.conf"
    properties.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{server.port}\n"
        "s3proxy.authorization=aws-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\n"
        f"s3proxy.credential={SECRET_KEY}\n"
        "jclouds.provider=filesystem-nio2\n"
        f"jclouds.filesystem.basedir={server.root}\n"
        "jclouds.identity=unused\njclouds.credential=unused\n"
    )
    return [str(java()), *SHORT_RUN, "-jar", str(s3proxy_jar()), "--properties", str(properties)], {}


COMMANDS = {"versitygw": _versitygw, "s3proxy": _s3proxy}


@cache
def versitygw() -> Path:
    """Return the program, built once. Raises NoServer."""
    target = cache_directory() / f"versitygw-{VERSITYGW}"
    program = target / "versitygw"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise NoServer("there is no Go here")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    environment = os.environ | {"GOBIN": str(part), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    command = [go, "install", "-ldflags=-s -w", f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise NoServer(f"go install: {done.stderr.strip()[-500:]}")
    _put_in_place(part, target)
    return program


def s3proxy_jar() -> Path:
    """Return the jar of S3Proxy. Raises NoServer."""
    return fetched_jar("org.gaul", "s3proxy", S3PROXY, "jar-with-dependencies")


@cache
def fetched_jar(group: str, name: str, version: str, classifier: str) -> Path:
    """Return a jar with all that it needs, fetched once. Raises NoServer."""
    target = cache_directory() / f"{name}-{version}"
    jar = target / f"{name}-{version}-{classifier}.jar"
    if jar.exists():
        return jar
    mvn = shutil.which("mvn")
    if mvn is None:
        raise NoServer("there is no Maven here")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    artifact = f"{group}:{name}:{version}:jar:{classifier}"
    command = [mvn, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={part}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise NoServer(f"mvn: {done.stdout.strip()[-500:]}")
    _put_in_place(part, target)
    return jar


def _put_in_place(part: Path, target: Path) -> None:
    """Rename a directory that is complete, unless another process was faster."""
    try:
        part.replace(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(part)
