"""The brokers of kafka-python's integration suite as Ottla's in its process, instead of a Kafka that it starts.

`test/integration/conftest.py` imports all of this at its end.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.testing import kafka

OPTIONS = {
    "num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice",
}
"""As in the suite's own kafka.properties."""


def sign_in(mechanism: str, user: str, password: str, directory: Path) -> Mapping[str, str]:
    """The settings of a broker whose listener has a user with SASL."""
    options = {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT", "sasl.enabled.mechanisms": mechanism}
    if mechanism == "PLAIN":
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        jaas = f'{module} required user_{user}="{password}";'
        return {**options, "listener.name.plaintext.plain.sasl.jaas.config": jaas}
    users = directory / "users"
    users.write_text(f"{user}={password}\n")
    return {**options, "ottla.initial.users.file": str(users)}


@pytest.fixture(scope="module")
def kafka_broker_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    fixture = importlib.import_module("test.integration.fixtures").KafkaFixture
    with ExitStack() as stack:

        def make(*, transport: str = "PLAINTEXT", sasl_mechanism: str | None = None, **others: object) -> Any:
            if others:
                pytest.skip(f"a broker with {others}")
            options = OPTIONS
            if sasl_mechanism is not None:
                directory = tmp_path_factory.mktemp("users")
                user, password = fixture.broker_user, fixture.broker_password
                options = {**OPTIONS, **sign_in(sasl_mechanism, user, password, directory)}
            brokers = stack.enter_context(kafka(options=options))
            host, port = brokers.bootstrap.split(":")
            broker = object.__new__(fixture)
            vars(broker).update(host=host, port=int(port), partitions=4, replicas=1, transport=transport)
            vars(broker).update(sasl_mechanism=sasl_mechanism, external=True, running=True, tmp_dir=None)
            vars(broker).update(child=SimpleNamespace(dump_logs=lambda: None), get_topic_names=brokers.topics)
            return broker

        yield make
