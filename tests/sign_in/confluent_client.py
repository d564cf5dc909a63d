"""Signs in by each case of a file with confluent-kafka, writes a record and reads it back: programs.py says how."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.sign_in.programs import PATIENCE_S, SIGNED_IN, SignIn, run_program


def settings(case: SignIn) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": case["bootstrap"],
        "security.protocol": "SSL" if case["mechanism"] == "SSL" else "SASL_SSL",
        "ssl.ca.location": case["trusted"],
        "log_level": 0,
    }
    if case["certificate"]:
        found |= {"ssl.certificate.location": case["certificate"], "ssl.key.location": case["key"]}
    if case["mechanism"] == "OAUTHBEARER":
        found |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (case["token"], time.time() + 300)}
    elif case["mechanism"] != "SSL":
        found |= {"sasl.mechanism": case["mechanism"], "sasl.username": case["user"], "sasl.password": case["password"]}
    return found


def sign_in(case: SignIn) -> str:
    errors: list[KafkaError] = []
    delivered: list[Any] = []
    producer = Producer({**settings(case), "error_cb": errors.append})
    producer.produce(case["topic"], b"of confluent", on_delivery=lambda error, sent: delivered.append((error, sent)))
    end = time.monotonic() + PATIENCE_S
    while not delivered and time.monotonic() < end:
        producer.poll(0.1)
        for error in errors:
            if error.name() in {"_AUTHENTICATION", "_SSL"} or "SSL" in error.str():
                return f"{error.name()}: {error.str()}"
    if not delivered or delivered[0][0] is not None:
        return f"nothing is delivered: {delivered} {errors}"
    consumer = Consumer({**settings(case), "group.id": "confluent"})
    try:
        consumer.assign([TopicPartition(case["topic"], delivered[0][1].partition(), delivered[0][1].offset())])
        read = consumer.consume(1, PATIENCE_S)
        return SIGNED_IN if [message.value() for message in read] == [b"of confluent"] else f"read {read}"
    finally:
        consumer.close()


if __name__ == "__main__":
    run_program(sign_in)
