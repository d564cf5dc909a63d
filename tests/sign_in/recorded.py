"""Keeps in outcomes.toml what comes of each case with each client and a real Kafka."""

from __future__ import annotations

import json
import tempfile
import tomllib
from functools import cache
from pathlib import Path

from tests.sign_in.cases import CASES
from tests.sign_in.clients import CLIENTS, outcomes
from tests.sign_in.secured_broker import SecuredBroker
from tests.support.kafka_jars import kafka_jars

FILE = Path(__file__).with_name("outcomes.toml")
HEAD = "# What comes of each case with each client and Apache Kafka 4.4.0, written by `python -m tests.sign_in`.\n"


@cache
def recorded() -> dict[str, dict[str, str]]:
    """Read the file: by the client and the name of the case."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def record() -> None:
    """Write the file."""
    text = HEAD
    with tempfile.TemporaryDirectory() as directory:
        broker = SecuredBroker(Path(directory), kafka_jars()).start()
        try:
            asked = [broker.sign_in(case) for case in CASES]
            for client in CLIENTS:
                found = outcomes(client, asked, Path(directory) / client)
                text += f'\n["{client}"]\n'
                for case, outcome in zip(CASES, found, strict=True):
                    text += f'"{case.name}" = {json.dumps(outcome, ensure_ascii=False)}\n'
        finally:
            broker.stop()
    FILE.write_text(text, encoding="utf-8")
