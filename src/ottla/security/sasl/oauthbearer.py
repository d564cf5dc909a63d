r"""Authenticates by OAUTHBEARER (RFC 7628): a signed JSON Web Token, checked with the keys of its issuer (jwks.py).

    the client: n,,\x01auth=Bearer TOKEN\x01\x01      the broker: nothing, or {"status":"invalid_token"}, to which
                                                      the client answers \x01 and gets the error of the request

A token must be signed by a known key, with an asymmetric algorithm, and name its key; it must have the expected issuer
and audience, a subject, and an end, which is the end of the session too. PyJWT is imported where a listener has the
mechanism.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

import jwt

from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.security.config import ALLOWED_URLS, SaslConfig
from ottla.security.sasl.jwks import Jwks, why_not_readable
from ottla.security.sasl.mechanism import AuthenticationFailed, Principal

log = logging.getLogger(__name__)

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"}
)
"""Asymmetric ones alone: with HS256 the public key would be the secret, and `none` is no signature."""

TOKEN_CHARACTERS_MAX: Final = 65536
_NAME: Final = r"(?:[^=,\x00\x01]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01auth=(?P<scheme>\w+) +(?P<token>[-_.A-Za-z0-9]+)"
    r"(?:\x01[A-Za-z]+=[\x21-\x7e \t\r\n]+)*\x01\x01"
)
_ABANDONED: Final = b"\x01"
INVALID_TOKEN: Final = '{"status":"invalid_token"}'  # noqa: S105 - no password


class InvalidToken(Exception):
    """Reports why a token is refused: for the log."""


class TokenValidator:
    """Checks the tokens of one listener. Raises InvalidSettings for settings that would let in too many."""

    def __init__(self, config: SaslConfig) -> None:
        _check(config)
        self._config = config
        self.keys = Jwks(
            config.jwks_url,
            refresh_s=config.jwks_refresh_ms / 1000,
            retry_s=config.jwks_retry_ms / 1000,
            retry_s_max=config.jwks_retry_ms_max / 1000,
        )

    def validate(self, token: str) -> Principal:
        """Return whose token it is. Raises InvalidToken."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise InvalidToken(f"a token of {len(token)} characters; the limit is {TOKEN_CHARACTERS_MAX}")
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise InvalidToken(
                    f"the algorithm {str(algorithm)[:20]!r} is not one of {', '.join(sorted(ALGORITHMS))}"
                )
            if not isinstance(key_id, str):
                raise InvalidToken("the token does not name its key")
            key = self.keys.find(key_id)
            if key is None:
                raise InvalidToken(f"the key {key_id[:100]!r} is not known")
            if key.algorithm not in (None, algorithm):
                raise InvalidToken(f"the key is for {key.algorithm}, not for {algorithm}")
            claims = jwt.decode(
                token,
                key.public_key,
                algorithms=[algorithm],
                audience=list(config.expected_audience) or None,
                issuer=config.expected_issuer or None,
                leeway=config.clock_skew_seconds,
                options={
                    "require": ["exp", "iat"],
                    "verify_aud": bool(config.expected_audience),
                    "verify_iss": bool(config.expected_issuer),
                    "verify_sub": False,  # any claim may name the user
                    "verify_jti": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise InvalidToken(str(error) or type(error).__name__) from None
        _texts(claims.get(config.scope_claim), config.scope_claim)
        user = claims.get(config.subject_claim)
        if not isinstance(user, str) or not user.strip():
            raise InvalidToken(f"the claim {config.subject_claim} does not name a user")
        groups = _texts(claims.get(config.groups_claim), config.groups_claim) if config.groups_claim else ()
        return Principal(user.strip(), groups, expires_at_ms=int(float(claims["exp"]) * 1000))


def _texts(value: Any, claim: str) -> tuple[str, ...]:
    """Return the texts of a claim: a list, or one text with blanks between them. Raises InvalidToken."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise InvalidToken(f"the claim {claim} is neither text nor a list of texts")


def _check(config: SaslConfig) -> None:
    """Raise InvalidSettings for settings with which tokens would not be checked."""
    problems = []

    def refuse(key: str, text: str, reason: str) -> None:
        problems.append(SettingProblem(key, text, reason))

    url = config.jwks_url
    if why := why_not_readable(url):
        refuse("sasl.oauthbearer.jwks.endpoint.url", url, why)
    elif config.allowed_urls and url not in config.allowed_urls:
        refuse("sasl.oauthbearer.jwks.endpoint.url", url, f"it is not among those of {ALLOWED_URLS}")
    for expected, key, is_off in (
        (config.expected_audience, "audience", config.allow_unverified_audience),
        (config.expected_issuer, "issuer", config.allow_unverified_issuer),
    ):
        name = f"sasl.oauthbearer.expected.{key}"
        if not expected and not is_off:
            why = "it is required: without it tokens that are not for this cluster would be taken"
            refuse(name, "", f"{why}. sasl.oauthbearer.allow.unverified.{key}=true takes them")
        elif not expected:
            log.warning("%s is not set: tokens of any %s sign clients in", name, key)
    if problems:
        raise InvalidSettings(problems)


class OAuthBearerExchange:
    """The server's half of one exchange."""

    def __init__(self, validator: TokenValidator) -> None:
        self.principal: Principal | None = None
        self._validator = validator
        self._refusal: str | None = None  # why the token is refused, once the client has the error

    def evaluate(self, token: bytes) -> bytes:
        """Return nothing, or the error that the client confirms before it fails. Raises AuthenticationFailed."""
        if self._refusal is not None:
            is_confirmed = token == _ABANDONED
            raise AuthenticationFailed(self._refusal, answer=INVALID_TOKEN if is_confirmed else "")
        match = _FIRST.fullmatch(token.decode(errors="replace"))
        if match is None or match["scheme"].lower() != "bearer":
            raise AuthenticationFailed("the message is not one of OAUTHBEARER")
        try:
            principal = self._validator.validate(match["token"])
        except InvalidToken as error:
            self._refusal = f"the token is refused: {error}"
            return INVALID_TOKEN.encode()
        authorization_id = match["authzid"]
        if authorization_id is not None and authorization_id != principal.name:
            raise AuthenticationFailed(
                "another authorization id",
                answer=f"Authentication failed: Client requested an authorization id ({authorization_id}) that is "
                f"different from the token's principal name ({principal.name})",
                user=principal.name,
            )
        self.principal = principal
        return b""
