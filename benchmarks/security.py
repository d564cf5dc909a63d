"""Measures what security costs beside a real Kafka with the same settings: TLS, the authorizer, sign-ins.

Kafka and Ottla run twice each, with an authorizer and without, all at the same time. A round measures each of them
once, and the order turns round each time. Processor time is that of the broker's process.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks import clients, signing_in
from benchmarks.brokers import until_answers
from benchmarks.progress import Progress
from benchmarks.report import SECURITY_TITLE, machine, today, write_part
from tests.support.certificates import Certificates
from tests.support.kafka_jars import kafka_jars
from tests.support.ottla_process import ConfiguredOttla
from tests.support.processes import free_port, usage
from tests.support.real_kafka import FULL_JVM, RealKafka
from tests.support.wire_client import Wire, encode

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PRODUCERS = 32
RECORD_BYTES = 2_100
SCRAM, ITERATIONS = "SCRAM-SHA-256", 4_096
PROGRAMS = ("Kafka", "Ottla")
Figures = dict[str, dict[str, list[float]]]
"""Figure -> program -> one value for each round."""


class Secured:
    """A broker with a listener each: without security, with TLS, and with SASL, where users sign in."""

    def __init__(self, program: str, directory: Path, certificates: Certificates, *, authorizer: bool) -> None:
        self.tls_port, self.sasl_port = free_port(), free_port()
        broker: RealKafka | ConfiguredOttla = (
            RealKafka(kafka_jars(), directory, jvm_options=FULL_JVM)
            if program == "Kafka"
            else ConfiguredOttla(directory)
        )
        places = (("PLAINTEXT", broker.port), ("TLS", self.tls_port), ("USERS", self.sasl_port))
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in places)
        settings = {
            **signing_in.settings(authorizer=authorizer),
            "advertised.listeners": listeners,
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            "listener.name.users.plain.sasl.jaas.config": signing_in.JAAS,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.store("broker.pem")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.trusted),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,USERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        if isinstance(broker, RealKafka):
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            settings[f"listener.name.users.{SCRAM.lower()}.sasl.jaas.config"] = module
            listeners += f",CONTROLLER://127.0.0.1:{broker.controller_port}"
        else:
            settings["durability"] = "page-cache"
        with broker.properties.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in {**settings, "listeners": listeners}.items())
        if isinstance(broker, RealKafka):
            broker.format()
        until_answers(broker.start)
        self.broker, self.port = broker, broker.port
        with Wire(self.port) as wire:
            for topic in ("plain", "tls", "user"):
                clients.create_and_wait(wire, topic)
            if authorizer:
                signing_in.create_acls(wire, "user")
            create_scram_user(wire)

    def cpu_us(self, units: Callable[[], float]) -> tuple[float, float]:
        """Run something that returns how much it did; returns that, and the broker's processor time for each."""
        before = usage(self.broker.pid).cpu_s
        done = units()
        return done, (usage(self.broker.pid).cpu_s - before) / done * 1e6


# ---- Sign-ins


@cache
def salted_password(salt: bytes) -> bytes:
    """Return what SCRAM derives from the password: once, so that the client costs next to nothing."""
    return hashlib.pbkdf2_hmac("sha256", signing_in.PASSWORD.encode(), salt, ITERATIONS)


def create_scram_user(wire: Wire) -> None:
    """Give the user a SCRAM credential."""
    salt = b"a salt of 16 bits"
    upsertion = {
        "name": signing_in.USER,
        "mechanism": 1,
        "iterations": ITERATIONS,
        "salt": salt,
        "salted_password": salted_password(salt),
    }
    results = wire.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[upsertion])["results"]
    assert not results[0]["error_code"], results


def sign_in(port: int) -> None:
    """Connect, sign in by SCRAM, and close."""
    with clients.connect(port) as made:

        def ask(name: str, version: int, **fields: object) -> bytes:
            frame = encode(name, version, 1, fields)
            made.sendall(struct.pack(">i", len(frame)) + frame)
            return clients.receive(made)

        clients.check(ask("sasl_handshake", 1, mechanism=SCRAM), 8)
        nonce = b64encode(os.urandom(18)).decode()
        bare = f"n={signing_in.USER},r={nonce}"
        answer = ask("sasl_authenticate", 1, auth_bytes=f"n,,{bare}".encode())
        clients.check(answer, 8)
        first = answer[answer.index(b"r=") :].partition(b"\0")[0].decode()  # up to the session's lifetime
        fields = dict(part.split("=", 1) for part in first.split(","))
        salted = salted_password(b64decode(fields["s"]))
        without_proof = f"c=biws,r={fields['r']}"
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signed = f"{bare},{first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        clients.check(ask("sasl_authenticate", 1, auth_bytes=f"{without_proof},p={proof}".encode()), 8)


def sign_in_for(port: int, seconds: float) -> int:
    """Sign in again and again; returns how often."""
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        sign_in(port)
        count += 1
    return count


def _signing_in(port: int, control: Connection) -> None:
    count, began = 0, time.perf_counter()
    while not control.poll():
        sign_in(port)
        count += 1
    control.send(count / (time.perf_counter() - began))


@contextmanager
def others_sign_in(port: int, found: list[float]) -> Iterator[None]:
    """Have another process sign in again and again during the block; adds how often in a second."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_signing_in, args=(port, theirs), daemon=True)
    process.start()
    try:
        yield
    finally:
        ours.send(None)
        found.append(ours.recv())
        process.join(60)


# ---- Rounds


def connect_with_tls(context: ssl.SSLContext, port: int) -> socket.socket:
    """Connect a bare socket with TLS."""
    return context.wrap_socket(clients.connect(port), server_hostname="127.0.0.1")


class Rounds:
    """The brokers and the figures so far."""

    def __init__(
        self,
        brokers: dict[str, tuple[Secured, Secured]],
        certificates: Certificates,
        *,
        seconds: float,
        records: int,
        figures: Figures,
    ) -> None:
        self.brokers, self.seconds, self.records, self.figures = brokers, seconds, records, figures
        self.connect_tls = partial(connect_with_tls, certificates.client_context())
        self.tls = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.trusted)}

    def note(self, figure: str, program: str, value: float) -> None:
        """Keep one value."""
        self.figures.setdefault(figure, {}).setdefault(program, []).append(value)

    def turns(self, number: int) -> Iterable[tuple[str, tuple[Secured, Secured]]]:
        """Return the programs in the order of a round."""
        rows = list(self.brokers.items())
        return rows if number % 2 == 0 else rows[::-1]

    def synchronous(self, number: int) -> None:
        """Measure producers with one request in flight: without and with TLS, alone and many."""
        for program, (broker, _) in self.turns(number):
            for what, port, connect in (
                ("without TLS", broker.port, clients.connect),
                ("TLS", broker.tls_port, self.connect_tls),
            ):
                for producers in (1, PRODUCERS):
                    run = partial(
                        clients.synchronous, port, "tls", producers=producers, seconds=self.seconds, connect=connect
                    )
                    self._synchronous(f"{producers} synchronous, {what}", program, broker, run)

    def authorizer(self, number: int) -> None:
        """Measure producers of a user who may by an ACL, on a broker with an authorizer and on one without."""
        for program, pair in self.turns(number):
            named = list(zip(("authorizer", "no authorizer"), pair, strict=True))
            for what, broker in named if number % 2 == 0 else reversed(named):
                run = partial(
                    clients.synchronous,
                    broker.sasl_port,
                    "user",
                    producers=PRODUCERS,
                    seconds=self.seconds,
                    connect=signing_in.connect_as_user,
                )
                self._synchronous(f"{PRODUCERS} synchronous, {what}", program, broker, run)

    def _synchronous(self, name: str, program: str, broker: Secured, run: Callable[[], clients.Latencies]) -> None:
        found: list[clients.Latencies] = []

        def requests() -> float:
            found.append(run())
            return found[0].per_second * self.seconds

        _, cpu_us = broker.cpu_us(requests)
        self.note(f"{name}: requests/s", program, found[0].per_second)
        self.note(f"{name}: p99, ms", program, found[0].p99_ms)
        self.note(f"{name}: CPU, us/request", program, cpu_us)

    def bulk(self, number: int) -> None:
        """Write and read back with librdkafka by TLS."""
        for program, (broker, _) in self.turns(number):
            topic = f"bulk-{number}"
            clients.make_topic(broker.port, topic)
            for verb, run in (
                ("write", partial(clients.bulk_librdkafka, size=RECORD_BYTES)),
                ("read", clients.read_librdkafka),
            ):
                took: list[float] = []

                def records(run: Callable[..., float] = run, took: list[float] = took, topic: str = topic) -> float:
                    took.append(run(broker.tls_port, topic, records=self.records, security=self.tls))  # noqa: B023
                    return self.records

                _, cpu_us = broker.cpu_us(records)
                name = f"{verb} {RECORD_BYTES:,} B, librdkafka, TLS"
                self.note(f"{name}: records/s", program, self.records / took[0])
                self.note(f"{name}: CPU, us/record", program, cpu_us)
            clients.delete_topic(broker.port, topic)

    def sign_ins(self, number: int) -> None:
        """Measure sign-ins one after the other, and what another client's requests wait beside them."""
        for program, (broker, _) in self.turns(number):
            count, cpu_us = broker.cpu_us(lambda: sign_in_for(broker.sasl_port, self.seconds))  # noqa: B023
            self.note(f"{SCRAM}: sign-ins/s", program, count / self.seconds)
            self.note(f"{SCRAM}: CPU, us/sign-in", program, cpu_us)
            for what in ("alone", "beside sign-ins"):
                rates: list[float] = []
                with ExitStack() as beside:
                    if what != "alone":
                        beside.enter_context(others_sign_in(broker.sasl_port, rates))
                    found = clients.synchronous(broker.port, "plain", producers=1, seconds=self.seconds)
                self.note(f"another client {what}: p50, ms", program, found.p50_ms)
                self.note(f"another client {what}: p99, ms", program, found.p99_ms)
                if rates:
                    self.note("sign-ins/s meanwhile", program, rates[0])


def table(figures: Figures) -> list[str]:
    """Return the table of medians."""
    rows = [f"| | {' | '.join(PROGRAMS)} |", f"| --- |{' ---: |' * len(PROGRAMS)}"]
    for figure, found in figures.items():
        values = (f"{statistics.median(found[program]):,.3g}" if program in found else "" for program in PROGRAMS)
        rows.append(f"| {figure} | {' | '.join(_plain(value) for value in values)} |")
    return rows


def _plain(text: str) -> str:
    """Write a number of three digits without an exponent.

    >>> _plain("1.23e+04"), _plain("0.5")
    ('12,300', '0.5')
    """
    return f"{float(text):,.0f}" if "e" in text else text


PARTS = ("synchronous", "authorizer", "bulk", "sign_ins")


def main() -> int:
    """Run what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.security", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), default=[], help="none: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--records", type=int, default=100_000, help="of the bulk rows")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    asked = parser.parse_args()
    progress, figures = Progress(), Figures()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch, ExitStack() as stop:
        certificates = Certificates(Path(scratch) / "certificates")
        brokers: dict[str, tuple[Secured, Secured]] = {}
        for program in PROGRAMS:
            progress.status(f"starting {program}")
            first, second = (
                Secured(program, Path(scratch) / f"{program}-{authorizer}", certificates, authorizer=authorizer)
                for authorizer in (True, False)
            )
            stop.callback(first.broker.stop)
            stop.callback(second.broker.stop)
            brokers[program] = first, second
        warm = Rounds(brokers, certificates, seconds=asked.seconds, records=asked.records, figures={})
        counted = Rounds(brokers, certificates, seconds=asked.seconds, records=asked.records, figures=figures)
        for part in asked.parts or PARTS:
            for number in range(asked.rounds + 1):  # the first is not counted
                progress.status(f"{part}, round {number} of {asked.rounds}")
                getattr(counted if number else warm, part)(number)
    rows = table(figures)
    for row in rows:
        progress.line(row)
    if not asked.no_page:
        text = (
            f"Measured {today()} on {machine()}. Kafka and Ottla answer from the page cache. {asked.rounds} rounds of "
            f"{asked.seconds:g} s, and one before that does not count; medians. TLS 1.3, P-256. In the rows of the "
            f"authorizer the user has signed in and has one ACL; {signing_in.OTHERS:,} are of others. Sign-ins are one "
            "after the other, each on a connection of its own, of a client that derives its key once."
        )
        write_part(PAGE, SECURITY_TITLE, [text, "", *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
