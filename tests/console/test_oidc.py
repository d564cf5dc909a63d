"""Sign-in at an OpenID Connect provider: what a token must have, and the way of the browser."""

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from ottla.console.oidc import NONCE, STATE, VERIFIER, OidcProvider, SignInFailed
from ottla.security.sasl.jwks import TokenKey

ISSUER, CLIENT = "https://id.example", "console"
KEY = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
KEYS = {"k1": TokenKey(KEY.public_key(), None)}
PROVIDER = OidcProvider(ISSUER, CLIENT, "", "https://console.example/sign-in/callback")


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {"iss": ISSUER, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 60, "nonce": "n", "email": "a@b.c"}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def token(key: Any = KEY, algorithm: str = "RS256", kid: str | None = "k1", **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm, headers={"kid": kid} if kid else {})


def test_a_token_that_is_right_names_the_user() -> None:
    assert PROVIDER.name_in(token(), KEYS, "n") == "a@b.c"


@pytest.mark.parametrize(
    "wrong",
    [
        token(iss="https://other.example"),
        token(aud="other"),
        token(exp=1),
        token(exp=None),
        token(nonce="of another sign-in"),
        token(nonce=None),
        token(email=None),
        token(email_verified=False),
        token(key=OTHER),
        token(kid=None),
        token(kid="k2"),
        token(key="shared secret of more than thirty-two bytes", algorithm="HS256"),
        jwt.encode(claims(), "", "none", headers={"kid": "k1"}),
        "",
        "a.b.c",
    ],
    ids=range(15),
)
def test_a_token_that_is_wrong_in_one_respect_is_refused(wrong: str) -> None:
    with pytest.raises(SignInFailed):
        PROVIDER.name_in(wrong, KEYS, "n")


def test_only_people_of_the_list_may_sign_in() -> None:
    provider = OidcProvider(ISSUER, CLIENT, "", "https://c", allowed=frozenset({"x@b.c"}))
    with pytest.raises(SignInFailed, match="not allowed"):
        provider.name_in(token(), KEYS, "n")


@pytest.mark.parametrize("issuer", ["http://id.example", "file:///etc", "id.example", ""])
def test_an_issuer_without_https_is_refused(issuer: str) -> None:
    with pytest.raises(ValueError, match="https"):
        OidcProvider(issuer, CLIENT, "", "https://c")


async def test_an_answer_that_no_sign_in_began_is_refused() -> None:
    for pending in ({}, {STATE: "s", NONCE: "n", VERIFIER: "v"}):
        with pytest.raises(SignInFailed, match="does not belong"):
            await PROVIDER.end({"state": "other", "code": "c"}, pending)
        assert not pending  # it can be used once


async def test_the_browser_is_sent_with_a_challenge_and_not_its_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = {"authorization_endpoint": f"{ISSUER}/authorize", "token_endpoint": ISSUER, "jwks_uri": ISSUER}
    monkeypatch.setattr(OidcProvider, "_document", lambda _: endpoints)
    pending: dict[str, str] = {}
    url = await PROVIDER.begin(pending)
    query = parse_qs(urlsplit(url).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["state"] == [pending[STATE]]
    assert pending[VERIFIER] not in url
