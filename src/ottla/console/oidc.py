"""Signs people in at an OpenID Connect provider: the authorization code flow with PKCE (RFC 7636).

The provider's document, keys and tokens are read off the loop, by https from its own host alone. An id token is taken
if its signature, issuer, audience, expiry and nonce are right; algorithms with a shared secret are never accepted.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import json
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from ottla.console.sessions import new_token
from ottla.security.sasl.jwks import Keys, UnreadableKeys, fetch_keys

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_ANSWER_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_LEEWAY_S: Final = 30
_DOCUMENT: Final = "/.well-known/openid-configuration"
STATE, NONCE, VERIFIER = "state", "nonce", "verifier"


class SignInFailed(Exception):
    """Reports in one line why a sign-in at the provider failed."""


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """A provider and this client of it. The secret is empty for a public client."""

    issuer: str
    client_id: str
    client_secret: str
    redirect_uri: str
    """The URL of the console with the path /sign-in/callback."""
    name_claim: str = "email"
    allowed: frozenset[str] = frozenset()
    """The names that may sign in; empty for everyone whom the provider lets in."""
    trust: ssl.SSLContext | None = None
    """Trusts the provider's certificate; None for what the system trusts."""

    def __post_init__(self) -> None:
        """Refuse an issuer that is not https. Raises ValueError."""
        if not _is_https(self.issuer):
            raise ValueError(f"the issuer must be an https:// URL, not {self.issuer}")

    async def begin(self, pending: dict[str, str]) -> str:
        """Return the URL to send the browser to; `pending` gets what the end must match."""
        document = await asyncio.to_thread(self._document)
        pending.update({STATE: new_token(), NONCE: new_token(), VERIFIER: new_token()})
        digest = hashlib.sha256(pending[VERIFIER].encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": "openid email profile",
            "state": pending[STATE],
            "nonce": pending[NONCE],
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return f"{document['authorization_endpoint']}?{urllib.parse.urlencode(query)}"

    async def end(self, query: Mapping[str, str], pending: dict[str, str]) -> str:
        """Return the name of who has signed in. Raises SignInFailed."""
        expected, nonce, verifier = (pending.pop(name, "") for name in (STATE, NONCE, VERIFIER))
        if not expected or not hmac.compare_digest(expected.encode(), query.get("state", "").encode()):
            raise SignInFailed("the answer does not belong to a sign-in of this browser")
        if query.get("iss", self.issuer) != self.issuer:  # RFC 9207
            raise SignInFailed("the answer is of another provider")
        if "error" in query:
            raise SignInFailed(f"the provider refused: {query.get('error_description') or query['error']}")
        return await asyncio.to_thread(self._name_of, query.get("code", ""), nonce, verifier)

    def _name_of(self, code: str, nonce: str, verifier: str) -> str:
        document = self._document()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "client_id": self.client_id,
            "code_verifier": verifier,
            **({"client_secret": self.client_secret} if self.client_secret else {}),
        }
        answer = self._read(document["token_endpoint"], urllib.parse.urlencode(fields).encode())
        try:
            keys = fetch_keys(document["jwks_uri"], self.trust)
        except UnreadableKeys as error:
            raise SignInFailed(f"the keys of the provider: {error}") from None
        return self.name_in(str(answer.get("id_token", "")), keys, nonce)

    def name_in(self, token: str, keys: Keys, nonce: str) -> str:
        """Return the name in an id token that is right in every respect. Raises SignInFailed."""
        try:
            header = jwt.get_unverified_header(token)
            key = keys.get(str(header.get("kid")))
            if key is None or header.get("alg") not in _ALGORITHMS or key.algorithm not in {None, header["alg"]}:
                raise SignInFailed("the token is signed with a key or an algorithm that is not accepted")
            claims = jwt.decode(
                token,
                key.public_key,
                algorithms=[header["alg"]],
                audience=self.client_id,
                issuer=self.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iat", "aud", "iss", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise SignInFailed(f"the token is not accepted: {error}") from None
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self.client_id:
            raise SignInFailed("the token was issued to another client")
        if not nonce or not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise SignInFailed("the token is of another sign-in")
        if self.name_claim == "email" and claims.get("email_verified") is False:
            raise SignInFailed("the provider has not verified this e-mail address")
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not name:
            raise SignInFailed(f"the token has no {self.name_claim}")
        if self.allowed and name not in self.allowed:
            raise SignInFailed(f"{name} is not allowed to use this console")
        return name

    def _document(self) -> Mapping[str, Any]:
        """Read what the provider says of itself. Raises SignInFailed."""
        document = self._read(self.issuer.rstrip("/") + _DOCUMENT)
        if document.get("issuer") != self.issuer:
            raise SignInFailed("the provider names another issuer than the one that is configured")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not _is_https(str(document.get(name, ""))):
                raise SignInFailed(f"the provider has no {name} with https://")
        return document

    async def sign_out_url(self, back_to: str) -> str:
        """Return where the provider ends its own session, which signs in without a question; empty if it cannot."""
        endpoint = str((await asyncio.to_thread(self._document)).get("end_session_endpoint", ""))
        if not _is_https(endpoint):
            return ""
        query = {"client_id": self.client_id, "post_logout_redirect_uri": back_to}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urllib.parse.urlencode(query)}"

    def _read(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(url, data=body, headers={"accept": "application/json"})  # noqa: S310 - https, see above
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=self.trust))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise SignInFailed(f"the provider cannot be asked: {error}") from None
        if not isinstance(answer, dict):
            raise SignInFailed("the answer of the provider is not an object")
        return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a provider names its own addresses."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse."""
        return


def _is_https(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)
