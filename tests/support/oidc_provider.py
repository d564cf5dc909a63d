"""A small OpenID Connect provider with TLS on this machine: the authorization code flow with PKCE, keys, sign-out."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.certificates import Certificates

COOKIE = "provider"


@dataclass
class Provider:
    """What the provider knows; a test changes it to have a provider that is wrong in one respect."""

    certificates: Certificates
    client_id: str = "console"
    client_secret: str = "secret of the client"
    redirect_uri: str = ""
    issuer: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    signs_with: str = ""
    forged_with: rsa.RSAPrivateKey | None = None
    """A key that is not published, used under the name of one that is."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims of id tokens that differ from what is right; None leaves one out."""
    document: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    signed_in: set[str] = field(default_factory=set)

    def rotate(self) -> None:
        """Sign with a new key, and publish that alone."""
        self.signs_with = f"key-{len(self.asked)}-{time.monotonic_ns()}"
        self.keys = {self.signs_with: rsa.generate_private_key(65537, 2048)}

    def published(self) -> dict[str, Any]:
        """The document at /.well-known/openid-configuration."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "end_session_endpoint": f"{self.issuer}/end",
            **self.document,
        }

    def key_set(self) -> dict[str, Any]:
        """The public keys."""
        keys = []
        for kid, key in self.keys.items():
            published = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
            keys.append({**published, "kid": kid, "alg": "RS256", "use": "sig"})
        return {"keys": keys}

    def authorize(self, query: dict[str, str], name: str) -> str:
        """Return where the browser goes with a code of one use. Raises ValueError."""
        right = {"response_type": "code", "client_id": self.client_id, "code_challenge_method": "S256"}
        wrong = [key for key, value in right.items() if query.get(key) != value]
        if wrong or query.get("redirect_uri") != self.redirect_uri or "openid" not in query.get("scope", "").split():
            raise ValueError(f"wrong request: {wrong or query}")
        code = f"code-{len(self.codes)}"
        self.codes[code] = {**query, "name": name}
        return f"{self.redirect_uri}?{urlencode({'code': code, 'state': query['state'], 'iss': self.issuer})}"

    def token(self, form: dict[str, str]) -> dict[str, Any]:
        """Return the tokens of a code. Raises ValueError."""
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None or form.get("grant_type") != "authorization_code":
            raise ValueError("invalid_grant")
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            raise ValueError("invalid_client")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if challenge != asked["code_challenge"] or form.get("redirect_uri") != self.redirect_uri:
            raise ValueError("invalid_grant")
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": self.client_id,
            "sub": asked["name"],
            "email": asked["name"],
            "email_verified": True,
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        key = self.forged_with or self.keys[self.signs_with]
        signed = jwt.encode(claims, key, "RS256", headers={"kid": self.signs_with})
        return {"access_token": "opaque", "token_type": "Bearer", "expires_in": 60, "id_token": signed}


_FORM = """<!doctype html><html lang="en"><title>Provider</title>
<link rel="icon" href="data:,"><h1>Provider</h1><form method="post">
<label>Name <input name="name"></label><button>Continue</button></form></html>"""


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            provider.asked.append(parts.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            match parts.path:
                case "/.well-known/openid-configuration":
                    self._json(provider.published())
                case "/keys":
                    self._json(provider.key_set())
                case "/authorize":
                    cookies = SimpleCookie(self.headers.get("Cookie", ""))
                    known = cookies[COOKIE].value if COOKIE in cookies else ""
                    if known in provider.signed_in:  # signs in without a question, as providers do
                        self._redirect(provider.authorize(query, known))
                    else:
                        self._send(HTTPStatus.OK, "text/html", _FORM.encode())
                case "/end":
                    provider.signed_in.clear()
                    assert query["client_id"] == provider.client_id
                    self._redirect(query["post_logout_redirect_uri"])
                case _:
                    self._json({"error": "not found"}, HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            provider.asked.append(parts.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            try:
                if parts.path == "/authorize":
                    provider.signed_in.add(form["name"])
                    self._redirect(provider.authorize(query, form["name"]), cookie=form["name"])
                else:
                    self._json(provider.token(form))
            except ValueError as error:
                self._json({"error": html.escape(str(error))}, HTTPStatus.BAD_REQUEST)

        def _redirect(self, url: str, cookie: str = "") -> None:
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", url)
            if cookie:
                self.send_header("Set-Cookie", f"{COOKIE}={cookie}; Path=/; HttpOnly")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _json(self, answer: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
            self._send(status, "application/json", json.dumps(answer).encode())

        def _send(self, status: HTTPStatus, media_type: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Discard the line."""

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a client that refuses the certificate or goes away."""


@contextmanager
def oidc_provider(certificates: Certificates) -> Iterator[Provider]:
    """One that answers with TLS at its `issuer` until the end."""
    provider = Provider(certificates)
    provider.rotate()
    server = _Server(("127.0.0.1", 0), _handler(provider))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.store("provider.pem"))
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    provider.issuer = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
