"""CVE-2026-110985: without a URL of the keys the signature of tokens was not checked: it failed open."""

from __future__ import annotations

import pytest

from ottla.broker import config as configuration
from ottla.broker.sasl_listeners import SaslListeners
from ottla.core.settings import InvalidSettings

LISTENER = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.expected.audience": "ottla",
    "sasl.oauthbearer.expected.issuer": "https://issuer.example",
}


def check(**options: str) -> None:
    config, _ = configuration.read(file=None, environment={}, options={**LISTENER, **options})
    SaslListeners(config)


def test_a_listener_without_the_keys_of_tokens_does_not_start() -> None:
    with pytest.raises(InvalidSettings, match="never taken without a check of their signature"):
        check()


@pytest.mark.parametrize("key", ["audience", "issuer"])
def test_nor_one_that_expects_nothing_of_a_token(key: str) -> None:
    with pytest.raises(InvalidSettings, match=f"expected.{key}"):
        check(
            **{
                "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
                f"sasl.oauthbearer.expected.{key}": "",
            }
        )
