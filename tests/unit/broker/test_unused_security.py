"""Settings of security that nothing uses are warned of: an operator who comes from Kafka believes that he has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker import config

OF_A = "listener.name.a.sasl.enabled.mechanisms"


def warnings_of(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "server.properties"
    file.write_text(text, encoding="utf-8")
    return config.read(file=file, environment={}, options={})[1]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("ssl.client.auth=required", "no listener has TLS, so nothing is encrypted; without effect: ssl.client.auth"),
        ("listener.name.plaintext.ssl.keystore.location=/a", "no listener has TLS"),
        ("sasl.enabled.mechanisms=SCRAM-SHA-512", "no listener has SASL, so no client signs in"),
        ("super.users=User:admin", "there is no authorizer, so every client may do everything"),
        ("allow.everyone.if.no.acl.found=true", "there is no authorizer"),
        ("security.inter.broker.protocol=SASL_SSL", "the listeners have PLAINTEXT"),
    ],
)
def test_security_that_no_listener_and_no_authorizer_uses_is_warned_of(tmp_path: Path, text: str, warning: str) -> None:
    (found,) = warnings_of(tmp_path, text)
    assert warning in found
    assert "line 1" in found, "where it was set"


@pytest.mark.parametrize(
    "text",
    [
        "num.partitions=3",
        "ssl.client.auth=none",
        "sasl.enabled.mechanisms=",
        "allow.everyone.if.no.acl.found=false",
        "security.inter.broker.protocol=PLAINTEXT",
        "listeners=SASL_PLAINTEXT://127.0.0.1:9092\nsasl.enabled.mechanisms=SCRAM-SHA-512",
        "listeners=SSL://127.0.0.1:9093\nssl.keystore.location=/a.pem\nssl.client.auth=required",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:a",
    ],
)
def test_security_that_is_off_or_used_is_not_warned_of(tmp_path: Path, text: str) -> None:
    assert warnings_of(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listeners=SASL_PLAINTEXT://:9092\nsasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256", ["PLAIN sends passwords"]),
        (
            f"listeners=A://192.0.2.1:9092\nlistener.security.protocol.map=A:SASL_PLAINTEXT\n{OF_A}=OAUTHBEARER",
            ["listener A is not encrypted and OAUTHBEARER sends tokens"],
        ),
        ("listeners=SASL_PLAINTEXT://:9092\nsasl.enabled.mechanisms=SCRAM-SHA-256", []),
        ("listeners=SASL_PLAINTEXT://127.0.0.1:9092\nsasl.enabled.mechanisms=PLAIN", []),
        ("listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=PLAIN\nssl.keystore.location=/a.pem", []),
    ],
)
def test_passwords_and_tokens_that_cross_the_network_unencrypted_are_warned_of(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    found = warnings_of(tmp_path, text)
    assert len(found) == len(expected)
    assert all(part in warning for part, warning in zip(expected, found, strict=True))
