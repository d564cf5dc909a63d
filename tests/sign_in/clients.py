"""Runs the programs of all clients, and reads what came of each case."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.sign_in.programs import SignIn
from tests.sign_in.secured_broker import LOGIN, in_properties, quoted
from tests.support.jvm import SHORT_RUN, java
from tests.support.kafka_jars import client_jars, kafka_jars
from tests.support.restarted_clients import GO_BUILD, build_go

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "sign_in"
LIMIT_S = 240
OLDER_JAVA = "3.9.1"
"""The last line of Java's clients before 4.0."""


class NoNode(Exception):
    """Reports that there is no Node, or no kafkajs, on this machine."""


def python_outcomes(module: str, cases: Sequence[SignIn], directory: Path) -> list[str]:
    """Run a program of Python."""
    return _numbered([sys.executable, "-m", f"tests.sign_in.{module}", _json(cases, directory)])


def go_outcomes(cases: Sequence[SignIn], directory: Path) -> list[str]:
    """Run the program with franz-go. Raises NoGo."""
    return _numbered([str(go_program()), _json(cases, directory)])


def node_outcomes(cases: Sequence[SignIn], directory: Path) -> list[str]:
    """Run the program with kafkajs. Raises NoNode."""
    node = shutil.which("node")
    if node is None:
        raise NoNode("there is no Node here")
    modules = str(node_modules())
    return _numbered([node, str(HERE / "node" / "sign_in.js"), _json(cases, directory)], NODE_PATH=modules)


def java_outcomes(jars: Path, cases: Sequence[SignIn], directory: Path) -> list[str]:
    """Run the program with Kafka's own client of these jars: one JVM for all cases."""
    files = directory / "cases"
    files.mkdir()
    for number, case in enumerate(cases):
        text = "".join(f"{name}={in_properties(value)}\n" for name, value in java_settings(case).items())
        (files / f"{number:03}").write_text(text)
    logger = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    command = [str(java()), "-Xmx256M", *SHORT_RUN, logger, "-cp", f"{jars}/*", str(HERE / "SignIn.java"), str(files)]
    return _numbered(command)


def java_settings(case: SignIn) -> dict[str, str]:
    """Return the properties of a client of Java's."""
    found = {
        "bootstrap.servers": case["bootstrap"],
        "topic": case["topic"],
        "security.protocol": "SSL" if case["mechanism"] == "SSL" else "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": case["trusted"],
        "max.block.ms": "40000",
    }
    if case["certificate"]:
        store = Path(case["certificate"]).with_suffix(".store")
        store.write_text(Path(case["key"]).read_text() + Path(case["certificate"]).read_text())
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    if case["mechanism"] == "SSL":
        return found
    options = {"username": case["user"], "password": case["password"], "token": case["token"]}
    given = " ".join(f"{name}={quoted(value)}" for name, value in options.items() if value)
    module = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}.get(case["mechanism"], "scram.Scram")
    found["sasl.mechanism"] = case["mechanism"]
    found["sasl.jaas.config"] = f"{LOGIN}.{module}LoginModule required {given};"
    return found


def go_program() -> Path:
    """Return the program with franz-go, built unless it is there. Raises NoGo and SubprocessError."""
    return build_go(HERE / "go", BUILD / "go_client", *GO_BUILD)


def node_modules() -> Path:
    """Return the directory with kafkajs in the version of the lock file, installed unless it is there. Raises NoNode."""
    source, target = HERE / "node", BUILD / "node"
    wanted = (source / "package-lock.json").read_text()
    installed = target / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        npm = shutil.which("npm")
        if npm is None:
            raise NoNode("there is no npm here")
        target.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, target)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNode(f"npm ci: {done.stderr.strip()[-500:]}")
        installed.write_text(wanted)
    return target / "node_modules"


Run = Callable[[Sequence[SignIn], Path], list[str]]

CLIENTS: dict[str, Run] = {
    "confluent-kafka": lambda cases, directory: python_outcomes("confluent_client", cases, directory),
    "kafka-python": lambda cases, directory: python_outcomes("kafka_python_client", cases, directory),
    "aiokafka": lambda cases, directory: python_outcomes("aiokafka_client", cases, directory),
    "Java 4.4": lambda cases, directory: java_outcomes(kafka_jars(), cases, directory),
    "Java 3.9": lambda cases, directory: java_outcomes(client_jars(OLDER_JAVA), cases, directory),
    "franz-go": go_outcomes,
    "kafkajs": node_outcomes,
}
SHORT_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "Java 4.4")
"""Those that `make test` runs: nothing is built or fetched for them alone."""


def outcomes(client: str, cases: Sequence[SignIn], directory: Path) -> list[str]:
    """Return what comes of each case with a client, as text that is the same in every run."""
    directory.mkdir(parents=True)
    return [comparable(text) for text in CLIENTS[client](cases, directory)]


def comparable(text: str) -> str:
    """Leave out ports, times, and which alert of TLS it was: OpenSSL says more of a certificate than Java does."""
    for pattern, replacement in _VARYING:
        text = re.sub(pattern, replacement, text)
    return text.strip()


ALERT = "an alert of TLS"
_VARYING = (
    (r"(localhost|127\.0\.0\.1|\[::1\]|::1):\d+", r"\1:PORT"),
    (r"\(after \d+ms", "(after Nms"),
    (r"\('(\S+)', \d+, <AddressFamily.*?>\)", r"\1:PORT"),
    (r"\[SSL: \w*ALERT\w*\].*", ALERT),
    (r"\(_ssl\.c:\d+\)", ""),
    (r"(broker certificate could not be verified), verify that.*", r"\1"),  # it says how to install certificates
    (r"current time \S+ is after", "now is after"),
    (r"(\w+:)?error:[0-9A-F]+:SSL routines:\w*:[\w/. ]*alert [\w ]+:.*SSL alert number \d+", ALERT),
    (r"remote error: tls: .*", f"remote error: {ALERT}"),
    # OpenSSL adds the authority's certificate to the broker's, Java does not, and clients say what they miss.
    (
        "(self-signed certificate in certificate chain|unable to (verify the first|get local issuer) certificate)",
        "the authority is not known",
    ),
)


def _json(cases: Sequence[SignIn], directory: Path) -> str:
    file = directory / "cases.json"
    file.write_text(json.dumps(cases))
    return str(file)


def _numbered(command: Sequence[str], **environment: str) -> list[str]:
    """Run a program; what it says of each case."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with code {done.returncode}: {done.stdout}{done.stderr}"
    lines = [line.partition("\t") for line in done.stdout.splitlines()]
    assert [int(number) for number, _, _ in lines] == list(range(len(lines))), done.stdout
    return [outcome for _, _, outcome in lines]
