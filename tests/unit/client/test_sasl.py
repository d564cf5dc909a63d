"""Our own client signs in to a broker, by each mechanism."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.client.addresses import Address
from ottla.client.cluster import Cluster
from ottla.client.properties import client_options
from ottla.core.errors import ErrorCode, KafkaError
from tests.support.sasl_broker import BASE, PASSWORD, PLAIN_JAAS, SaslBroker, sasl_broker
from tests.support.tokens import Issuer


async def sign_in(broker: SaslBroker, **properties: str) -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        **{name.replace("__", "."): text for name, text in properties.items()},
    }
    options = client_options(given)
    async with await Cluster.connect([Address("127.0.0.1", broker.port)], options=options) as cluster:
        await cluster.connection(1)


async def test_it_signs_in_with_a_password(tmp_path: Path) -> None:
    async with sasl_broker(tmp_path) as broker:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            await sign_in(broker, sasl__mechanism=mechanism, sasl__username="alice", sasl__password=PASSWORD)
            with pytest.raises(KafkaError) as refused:
                await sign_in(broker, sasl__mechanism=mechanism, sasl__username="alice", sasl__password="wrong")
            assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await sign_in(broker, sasl__mechanism="PLAIN", sasl__username="alice", sasl__password="plain secret")


async def test_it_signs_in_with_a_token_of_a_file_or_of_a_command(tmp_path: Path) -> None:
    issuer, file = Issuer(tmp_path / "keys.json"), tmp_path / "token"
    file.write_text(issuer.token() + "\n")
    from_file = {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    from_command = {"ottla.sasl.oauthbearer.token.command": f"{sys.executable} -c 'print(open(\"{file}\").read())'"}
    async with sasl_broker(
        tmp_path / "data", {**BASE, "listener.name.plaintext.plain.sasl.jaas.config": PLAIN_JAAS, **issuer.settings}
    ) as broker:
        for source in (from_file, from_command):
            await sign_in(broker, sasl__mechanism="OAUTHBEARER", **source)
        file.write_text(issuer.token(aud="another"))
        with pytest.raises(KafkaError, match="invalid_token") as refused:
            await sign_in(broker, sasl__mechanism="OAUTHBEARER", **from_file)
        assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        for text in ("", "two words", "a\x01auth=Bearer b"):
            file.write_text(text)
            with pytest.raises(KafkaError, match="there is no token"):
                await sign_in(broker, sasl__mechanism="OAUTHBEARER", **from_file)
        for command in ("exit 3", "true"):
            with pytest.raises(KafkaError, match="token"):
                await sign_in(
                    broker, sasl__mechanism="OAUTHBEARER", **{"ottla.sasl.oauthbearer.token.command": command}
                )
