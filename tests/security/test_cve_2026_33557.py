"""CVE-2026-33557: the default validator of OAUTHBEARER took any token, whatever its signature, issuer and audience."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.settings import SettingText, load
from ottla.security.config import SaslConfig
from ottla.security.sasl.jwks import fetch_keys
from ottla.security.sasl.oauthbearer import InvalidToken, TokenValidator
from tests.support.sasl_broker import sasl_broker
from tests.support.tokens import Issuer, first_message, public_pem, rsa_key


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def unsigned(issuer: Issuer, algorithm: str) -> str:
    """A token without a signature."""
    return f"{_part({'alg': algorithm, 'kid': 'rsa'})}.{_part(issuer.claims())}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """HS256: any client that knows the public key can make it."""
    content = f"{_part({'alg': 'HS256', 'kid': 'rsa'})}.{_part(issuer.claims())}"
    signature = hmac.new(public_pem(rsa_key("a")), content.encode(), hashlib.sha256).digest()
    return f"{content}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_no_token_is_taken_without_the_signature_issuer_and_audience_that_are_expected(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "keys.json")
    tokens = {
        "none": unsigned(issuer, "none"),
        "None": unsigned(issuer, "None"),
        "RS256 without a signature": unsigned(issuer, "RS256"),
        "HS256 with the public key": signed_with_the_public_key(issuer),
        "a foreign key": issuer.token(key=rsa_key("foreign")),
        "no kid": issuer.token(headers={}),
        "an unknown kid": issuer.token(headers={"kid": "unknown"}),
        "another issuer": issuer.token(iss="https://other.example"),
        "no issuer": issuer.token(iss=None),
        "another audience": issuer.token(aud="another"),
        "no audience": issuer.token(aud=None),
        "ended": issuer.token(exp=1000),
        "without an end": issuer.token(exp=None),
    }
    async with sasl_broker(tmp_path / "data", issuer.settings) as broker:
        for what, token in tokens.items():
            async with await broker.client() as client:
                await client.handshake("OAUTHBEARER")
                answer = await client.token(first_message(token))
                assert answer is not None and answer["auth_bytes"] == b'{"status":"invalid_token"}', what
                answer = await client.token(b"\x01")
                assert answer is not None and answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED, what
                assert not await client.may_ask(), what
        async with await broker.client() as client:
            await client.handshake("OAUTHBEARER")
            answer = await client.token(first_message(issuer.token()))
            assert answer is not None and answer["error_code"] == 0
            assert await client.may_ask()


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS384", "HS512"])
def test_an_algorithm_without_a_private_key_is_refused_before_a_library_sees_the_token(
    tmp_path: Path, algorithm: str
) -> None:
    issuer = Issuer(tmp_path / "keys.json")
    validator = TokenValidator(load(SaslConfig, {key: SettingText(text, "") for key, text in issuer.settings.items()}))
    validator.keys._keys = fetch_keys(issuer.file.as_uri())
    with pytest.raises(InvalidToken, match=f"the algorithm '{algorithm}' is not one of"):
        validator.validate(unsigned(issuer, algorithm) + "AAAA")


@pytest.mark.parametrize("lasts", [True, False])
async def test_the_session_ends_with_the_token(tmp_path: Path, lasts: bool) -> None:
    import time

    issuer = Issuer(tmp_path / "keys.json")
    async with sasl_broker(tmp_path / "data", issuer.settings) as broker, await broker.client() as client:
        await client.handshake("OAUTHBEARER")
        end = int(time.time()) + (600 if lasts else -5)  # within the skew
        answer = await client.token(first_message(issuer.token(exp=end)))
        assert answer is not None and answer["error_code"] == 0
        assert (0 < answer["session_lifetime"] <= 600_000) is lasts
        assert await client.may_ask() is lasts
