"""Users, ACLs, quotas and delegation tokens go from Kafka to Ottla and back with the directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ottla.cli.main import run as ottla
from tests.compat.test_security_commands import SCRAM, Secured, user

pytestmark = [pytest.mark.external, pytest.mark.slow]


def by_token(token_id: str, secret: str) -> list[str]:
    jaas = f'{SCRAM[:-1]} username="{token_id}" password="{secret}" tokenauth="true";'
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    return [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]


def test_who_could_sign_in_to_kafka_can_to_ottla_and_to_kafka_again(kafka_jars: Path, tmp_path: Path) -> None:
    first = Secured("kafka", kafka_jars, tmp_path / "first")
    first.broker.start()
    try:
        user(first, "ida")
        first.cli.out("topic", "create", "for-ida")
        first.cli.out("acl", "create", "--allow-principal", "User:ida", "--topic", "for-ida", "--operation", "describe")
        first.cli.out("quota", "set", "--user", "ida", "producer_byte_rate=1024")
        made = json.loads(first.as_user("ida", "token", "create", "--renewer", "bob", "--format", "json"))
        (known,) = json.loads(first.as_user("ida", "token", "list", "--format", "json"))
        quotas = first.cli.json("quota", "list")
    finally:
        first.broker.stop()

    second = Secured("ottla", kafka_jars, tmp_path / "second")
    shutil.copytree(first.broker.data, second.broker.data)
    second.broker.start()
    try:
        assert b"for-ida" in second.signed_in.out(*by_token(made["id"], made["hmac"]), "topic", "list")
        assert json.loads(second.as_user("ida", "token", "list", "--format", "json")) == [known]
        assert second.cli.json("quota", "list") == quotas
        other = json.loads(second.as_user("ida", "token", "create", "--format", "json"))
        second.as_user("ida", "token", "expire", made["id"])
    finally:
        second.broker.stop()
    assert ottla(["cluster", "export-kafka", str(second.broker.data)]) == 0

    third = Secured("kafka", kafka_jars, tmp_path / "third")
    shutil.copytree(second.broker.data, third.broker.data)
    third.broker.start()
    try:
        assert b"for-ida" in third.signed_in.out(*by_token(other["id"], other["hmac"]), "topic", "list")
        (listed,) = json.loads(third.as_user("ida", "token", "list", "--format", "json"))
        assert listed["id"] == other["id"]
        assert third.cli.json("quota", "list") == quotas
        fails = third.signed_in.fails(*by_token(made["id"], made["hmac"]), "topic", "list", code=1)
        assert "SASL_AUTHENTICATION_FAILED" in fails
    finally:
        third.broker.stop()
