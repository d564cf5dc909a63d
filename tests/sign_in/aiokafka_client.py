"""Signs in by each case of a file with aiokafka, writes a record and reads it back: programs.py says how."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider

from tests.sign_in.programs import SIGNED_IN, SignIn, run_program

TRIES_MS = 10_000
"""It asks again until the end of this time for what it does not get: it takes no notice of a token that is refused."""


class Token(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """A token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def settings(case: SignIn) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=case["trusted"])
    if case["certificate"]:
        context.load_cert_chain(case["certificate"], case["key"])
    found: dict[str, Any] = {
        "bootstrap_servers": case["bootstrap"],
        "security_protocol": "SSL" if case["mechanism"] == "SSL" else "SASL_SSL",
        "ssl_context": context,
        "request_timeout_ms": TRIES_MS if case["is_refused"] else 40_000,
    }
    if case["mechanism"] == "OAUTHBEARER":
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Token(case["token"])}
    elif case["mechanism"] != "SSL":
        found["sasl_mechanism"] = case["mechanism"]
        found |= {"sasl_plain_username": case["user"], "sasl_plain_password": case["password"]}
    return found


async def written_and_read(case: SignIn) -> str:
    producer = AIOKafkaProducer(**settings(case))
    try:
        await producer.start()
        sent = await producer.send_and_wait(case["topic"], b"of aiokafka")
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(**settings(case))
    await consumer.start()
    try:
        where = TopicPartition(case["topic"], sent.partition)
        consumer.assign([where])
        consumer.seek(where, sent.offset)
        read = (await consumer.getone()).value
    finally:
        await consumer.stop()
    return SIGNED_IN if read == b"of aiokafka" else f"read {read!r}"


if __name__ == "__main__":
    run_program(lambda case: asyncio.run(written_and_read(case)))
