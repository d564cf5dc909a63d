"""Signs in by each case of a file with kafka-python, writes a record and reads it back: programs.py says how."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import ssl
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.sign_in.programs import PATIENCE_S, SIGNED_IN, SignIn, run_program

TRIES_MS = 20_000
"""It tries again until the end of this time."""


class Token(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """A token."""

    def __init__(self, token: str = "") -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def settings(case: SignIn) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=case["trusted"])
    if case["certificate"]:
        context.load_cert_chain(case["certificate"], case["key"])
    found: dict[str, Any] = {
        "bootstrap_servers": case["bootstrap"],
        "security_protocol": "SSL" if case["mechanism"] == "SSL" else "SASL_SSL",
        "ssl_context": context,
        "reconnect_backoff_max_ms": 100,  # it may see the end of a connection before the error that was sent there
    }
    if case["mechanism"] == "OAUTHBEARER":
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Token(case["token"])}
    elif case["mechanism"] != "SSL":
        found["sasl_mechanism"] = case["mechanism"]
        found |= {"sasl_plain_username": case["user"], "sasl_plain_password": case["password"]}
    return found


def sign_in(case: SignIn) -> str:
    client = settings(case)
    producer = KafkaProducer(**client, bootstrap_timeout_ms=TRIES_MS if case["is_refused"] else PATIENCE_S * 1000)
    sent = producer.send(case["topic"], b"of kafka-python").get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(consumer_timeout_ms=PATIENCE_S * 1000, **client)
    where = TopicPartition(case["topic"], sent.partition)
    consumer.assign([where])
    consumer.seek(where, sent.offset)
    read = next(consumer).value
    consumer.close()
    return SIGNED_IN if read == b"of kafka-python" else f"read {read!r}"


if __name__ == "__main__":
    run_program(sign_in)
