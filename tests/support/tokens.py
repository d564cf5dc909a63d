"""Issues JSON Web Tokens, and publishes the keys that check them in a file."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://issuer.example", "ottla"


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """A key, the same for the same name: making one takes a while."""
    del name
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    """The same with an elliptic curve."""
    del name
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    """The public key as text."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(key_id: str | None, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: Any) -> dict[str, Any]:
    """A key of a set."""
    algorithm: Any = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, **({} if key_id is None else {"kid": key_id}), **more}


class Issuer:
    """An issuer with the keys `rsa` and `ec`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.publish(jwk("rsa", rsa_key("a")), jwk("ec", ec_key("a")))

    def publish(self, *keys: dict[str, Any]) -> None:
        """Write the set of keys."""
        self.file.write_text(json.dumps({"keys": keys}))

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a broker that takes its tokens."""
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.file.as_uri(),
            "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }

    def claims(self, **more: Any) -> dict[str, Any]:
        """Claims that are taken; None leaves one out."""
        now = int(time.time())
        found = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, **more}
        return {name: value for name, value in found.items() if value is not None}

    def token(
        self, *, key: Any = None, algorithm: str = "RS256", headers: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token."""
        signer = rsa_key("a") if key is None else key
        return jwt.encode(
            self.claims(**claims), signer, algorithm=algorithm, headers={"kid": "rsa"} if headers is None else headers
        )


def first_message(token: str, *, authzid: str = "", extensions: str = "") -> bytes:
    """The message with which a client sends its token."""
    authorization = f"a={authzid}" if authzid else ""
    return f"n,{authorization},\x01auth=Bearer {token}\x01{extensions}\x01".encode()
