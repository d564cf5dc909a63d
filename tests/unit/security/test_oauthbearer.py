"""A token signs in its user if it is signed by a known key, is for this cluster and has not ended."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ottla.core.settings import InvalidSettings, SettingText, load
from ottla.security.config import ALLOWED_URLS, SaslConfig
from ottla.security.sasl import jwks
from ottla.security.sasl.jwks import UnreadableKeys, fetch_keys, parse_keys, why_not_readable
from ottla.security.sasl.mechanism import AuthenticationFailed, Principal
from ottla.security.sasl.oauthbearer import INVALID_TOKEN, InvalidToken, OAuthBearerExchange, TokenValidator
from tests.support.tokens import AUDIENCE, Issuer, ec_key, first_message, jwk, rsa_key
from tests.support.waiting import until


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys.json")


def validator(issuer: Issuer, **settings: str) -> TokenValidator:
    """A validator that has read the keys."""
    given = {**issuer.settings, **{name.replace("_", "."): text for name, text in settings.items()}}
    found = TokenValidator(load(SaslConfig, {key: SettingText(text, "") for key, text in given.items()}))
    found.keys._keys = fetch_keys(issuer.file.as_uri())
    return found


def test_a_token_names_its_user_and_the_end_of_the_session(issuer: Issuer) -> None:
    end = int(time.time()) + 60
    assert validator(issuer).validate(issuer.token(exp=end)) == Principal("alice", expires_at_ms=end * 1000)
    of_pss = issuer.token(algorithm="PS512")
    assert validator(issuer).validate(of_pss).name == "alice"
    of_ec = issuer.token(key=ec_key("a"), algorithm="ES256", headers={"kid": "ec"}, sub="bob", aud=["x", AUDIENCE])
    assert validator(issuer).validate(of_ec).name == "bob"


def test_other_claims_may_name_the_user_and_the_groups(issuer: Issuer) -> None:
    of_claims = validator(
        issuer, **{"sasl.oauthbearer.sub.claim.name": "client_id", "ottla.sasl.oauthbearer.groups.claim.name": "roles"}
    )
    principal = of_claims.validate(issuer.token(client_id="c1", sub=None, roles=["team a", "b"], scope="x y"))
    assert (principal.name, principal.groups) == ("c1", ("team a", "b"))
    assert of_claims.validate(issuer.token(client_id="c1", roles="a b")).groups == ("a", "b")
    assert of_claims.validate(issuer.token(client_id="c1")).groups == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": 1000}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"nbf": 9_999_999_999}, "not yet valid"),
        ({"aud": "another"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"sub": ""}, "does not name a user"),
        ({"sub": None}, "does not name a user"),
        ({"sub": 7}, "does not name a user"),
        ({"scope": {"a": 1}}, "neither text nor a list"),
        ({"headers": {}}, "does not name its key"),
        ({"headers": {"kid": "unknown"}}, "is not known"),
        ({"key": rsa_key("other")}, "Signature verification failed"),
        ({"algorithm": "ES256", "key": ec_key("a")}, r"(?i)key"),  # the key of the `kid` is another one
    ],
)
def test_any_other_token_is_refused(issuer: Issuer, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        validator(issuer).validate(issuer.token(**changes))


def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    ended = issuer.token(exp=int(time.time()) - 20)
    assert validator(issuer).validate(ended).name == "alice"
    with pytest.raises(InvalidToken, match="expired"):
        validator(issuer, **{"sasl.oauthbearer.clock.skew.seconds": "10"}).validate(ended)


@pytest.mark.parametrize("token", ["", "a", "a.b.c", "e30.e30.", "x" * 70_000, urlsafe_b64encode(b"[" * 9000).decode()])
def test_what_is_no_token_is_refused(issuer: Issuer, token: str) -> None:
    with pytest.raises(InvalidToken):
        validator(issuer).validate(token)


def test_a_key_for_another_algorithm_does_not_check_a_token(issuer: Issuer) -> None:
    issuer.publish(jwk("rsa", rsa_key("a"), alg="RS512"))
    with pytest.raises(InvalidToken, match="for RS512"):
        validator(issuer).validate(issuer.token())


def test_keys_that_do_not_sign_or_have_no_id_are_left_out() -> None:
    keys = {
        "keys": [
            jwk("signs", rsa_key("a"), use="sig"),
            jwk("encrypts", rsa_key("a"), use="enc"),
            jwk(None, rsa_key("a")),
            {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
            {"kty": "new", "kid": "new"},
        ]
    }
    assert set(parse_keys(json.dumps(keys).encode())) == {"signs"}
    for text in (b"", b"[]", b'{"keys": 7}', b"\xff", b'{"keys": [7]}', b"[" * 100_000):
        with pytest.raises(UnreadableKeys):
            parse_keys(text)


# ---- The exchange


def test_the_client_confirms_the_error_before_the_sign_in_fails(issuer: Issuer) -> None:
    exchange = OAuthBearerExchange(validator(issuer))
    assert exchange.evaluate(first_message(issuer.token(aud="another"))) == INVALID_TOKEN.encode()
    with pytest.raises(AuthenticationFailed) as failed:
        exchange.evaluate(b"\x01")
    assert failed.value.answer == INVALID_TOKEN
    assert exchange.principal is None


def test_a_second_token_does_not_follow_a_refused_one(issuer: Issuer) -> None:
    exchange = OAuthBearerExchange(validator(issuer))
    exchange.evaluate(first_message(issuer.token(aud="another")))
    with pytest.raises(AuthenticationFailed):
        exchange.evaluate(first_message(issuer.token()))


def test_an_authorization_id_is_that_of_the_token(issuer: Issuer) -> None:
    exchange = OAuthBearerExchange(validator(issuer))
    assert exchange.evaluate(first_message(issuer.token(), authzid="alice", extensions="trace=1\x01")) == b""
    assert exchange.principal is not None and exchange.principal.name == "alice"
    with pytest.raises(AuthenticationFailed) as failed:
        OAuthBearerExchange(validator(issuer)).evaluate(first_message(issuer.token(), authzid="root"))
    assert "(root) that is different from the token's principal name (alice)" in failed.value.answer


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"n,,", b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"p,,\xff"]
)
def test_what_is_no_message_of_the_mechanism_is_refused(issuer: Issuer, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthBearerExchange(validator(issuer)).evaluate(message)


# ---- Settings and keys


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "never taken without a check of their signature"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://issuer.example/"}, "https://"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://issuer.example/"}, "https://"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file://host/keys"}, "https://"),
        ({ALLOWED_URLS: "https://issuer.example/keys"}, "not among those"),
        ({"sasl.oauthbearer.expected.audience": ""}, "allow.unverified.audience=true"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "allow.unverified.issuer=true"),
    ],
)
def test_settings_with_which_tokens_would_not_be_checked_are_refused(
    issuer: Issuer, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidSettings, match=why):
        validator(issuer, **changes)


def test_who_insists_takes_tokens_for_anybody(issuer: Issuer) -> None:
    of_any = validator(
        issuer,
        **{
            "sasl.oauthbearer.expected.audience": "",
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.expected.issuer": "",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
        },
    )
    assert of_any.validate(issuer.token(aud="another", iss=None)).name == "alice"
    with pytest.raises(InvalidToken):
        of_any.validate(issuer.token(key=rsa_key("other")))


async def test_a_new_key_is_found_after_the_first_token_that_names_it(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "UNKNOWN_KEY_S", 0.0)
    keys = validator(issuer).keys
    await keys.start()
    assert keys.find("rsa") is not None
    issuer.publish(jwk("new", rsa_key("other")))
    assert keys.find("new") is None
    await until(lambda: keys.find("new") is not None)
    issuer.file.unlink()  # what was read stays in use
    keys.find("absent")
    await until(lambda: keys._errors > 0)
    assert keys.find("new") is not None
    keys.close()


async def test_keys_are_not_read_again_for_each_token_with_an_unknown_key(issuer: Issuer) -> None:
    keys = validator(issuer).keys
    await keys.start()
    for number in range(100):
        assert keys.find(str(number)) is None
    assert not keys._is_fetching
    keys.close()


class Redirecting(BaseHTTPRequestHandler):
    """Answers with keys at /keys, and redirects elsewhere by the path."""

    def do_GET(self) -> None:
        if self.path == "/keys":
            text = json.dumps({"keys": [jwk("rsa", rsa_key("a"))]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        self.send_response(302)
        where = {"/here": "/keys", "/file": "file:///etc/passwd", "/there": "http://localhost:1/keys"}[self.path]
        self.send_header("location", where)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name of the base
        """Write nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Redirecting)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_is_followed_on_the_same_host_alone(web: str) -> None:
    """By http, which the settings do not take: what decides is the same."""
    assert set(fetch_keys(f"{web}/here")) == {"rsa"}
    for path in ("/file", "/there"):
        with pytest.raises(UnreadableKeys, match=r"(?i)redirect"):
            fetch_keys(f"{web}{path}")
    assert why_not_readable(web)


def test_a_file_that_is_too_large_or_absent_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(UnreadableKeys):
        fetch_keys(file.as_uri())
    with file.open("wb") as writer:
        writer.truncate(jwks.JWKS_BYTES_MAX + 1)
    with pytest.raises(UnreadableKeys, match="larger"):
        fetch_keys(file.as_uri())
