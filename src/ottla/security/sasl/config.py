"""Declares the settings of sign-in by SASL. Most may be set for one listener, some for one mechanism."""

from __future__ import annotations

from typing import Any, Final

from ottla.core.settings import HOUR_MS, LONG_MAX, SECOND_MS, Section, Type, setting
from ottla.security.sasl.mechanism import MECHANISMS, OAUTHBEARER, SCRAM_SHA_256, SCRAM_SHA_512

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


def _own(key: str, **more: Any) -> Any:
    return setting(key, per_listener=True, **more)


def split_mechanism_key(key: str) -> tuple[str, str]:
    """Return the mechanism that a setting is for, and the setting's own name; no mechanism is empty.

    >>> split_mechanism_key("scram-sha-256.sasl.jaas.config"), split_mechanism_key("sasl.jaas.config")
    (('SCRAM-SHA-256', 'sasl.jaas.config'), ('', 'sasl.jaas.config'))
    """
    for mechanism in MECHANISMS:
        if key.startswith(f"{mechanism.lower()}."):
            return mechanism, key[len(mechanism) + 1 :]
    return "", key


class SaslConfig(Section):
    """Holds Kafka's settings `sasl.*` of listeners, and of connections to other brokers."""

    enabled_mechanisms: tuple[str, ...] = _own(
        "sasl.enabled.mechanisms", default=(SCRAM_SHA_512, SCRAM_SHA_256), kind=Type.LIST, choices=MECHANISMS,
        doc="The mechanisms by which clients sign in on listeners with SASL.",
    )  # fmt: skip
    jaas_config: str = _own(
        "sasl.jaas.config", default="", kind=Type.PASSWORD, per_mechanism=True,
        doc='The login module with its options, as in Kafka: for PLAIN the users, `user_NAME="password"`; for '
        "connections to other brokers `username` and `password`. It is parsed as text: no class is loaded. "
        "`listener.name.<name>.<mechanism>.sasl.jaas.config` is that of one listener and mechanism.",
    )  # fmt: skip
    session_ms_max: int = _own(
        "connections.max.reauth.ms", default=0, kind=Type.LONG, unit="milliseconds", at_least=0, at_most=LONG_MAX,
        per_mechanism=True,
        doc="After this time a client must sign in again, on the same connection, or the connection is closed. 0 means "
        "that a session ends with its token only.",
    )  # fmt: skip
    failure_delay_ms: int = _own(
        "connection.failed.authentication.delay.ms", default=100, kind=Type.INT, unit="milliseconds", at_least=0,
        at_most=60 * SECOND_MS,
        doc="A failed sign-in is answered after this time, and the connection closed.",
    )  # fmt: skip
    inter_broker_mechanism: str = setting(
        "sasl.mechanism.inter.broker.protocol", default=SCRAM_SHA_512, kind=Type.STRING, choices=MECHANISMS,
        doc="The mechanism by which brokers sign in to each other.",
    )  # fmt: skip
    initial_users_file: str = setting(
        "ottla.initial.users.file", default="", kind=Type.STRING,
        doc="A file of lines NAME=PASSWORD. At the start each user that has no SCRAM credential gets one of each "
        "enabled SCRAM mechanism; the file may be removed then. `ottla server --init-user` does so for one user.",
    )  # fmt: skip
    jwks_url: str = _own(
        "sasl.oauthbearer.jwks.endpoint.url", default="", kind=Type.STRING,
        doc=f"Where the keys are that sign the tokens of {OAUTHBEARER}: an https URL, or a file (`file:///...`), of a "
        "JSON Web Key Set. Without it the mechanism is not served.",
    )  # fmt: skip
    jwks_refresh_ms: int = _own(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", default=HOUR_MS, kind=Type.LONG, unit="milliseconds",
        at_least=SECOND_MS,
        doc="Interval at which these keys are read again. A token with an unknown key has them read at once.",
    )  # fmt: skip
    jwks_retry_ms: int = _own(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", default=100, kind=Type.LONG, unit="milliseconds",
        at_least=1, doc="Pause before the keys are read again after an error; it doubles with each error.",
    )  # fmt: skip
    jwks_retry_ms_max: int = _own(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", default=10 * SECOND_MS, kind=Type.LONG,
        unit="milliseconds", at_least=1, doc="Maximum of that pause.",
    )  # fmt: skip
    allowed_urls: tuple[str, ...] = setting(
        ALLOWED_URLS, default=(), kind=Type.LIST,
        doc="The URLs from which keys may be read: a system property of Kafka's. Empty means those that the settings "
        "of this broker name, because no request can change them.",
    )  # fmt: skip
    expected_audience: tuple[str, ...] = _own(
        "sasl.oauthbearer.expected.audience", default=(), kind=Type.LIST,
        doc="A token must be for one of these audiences (claim `aud`).",
    )  # fmt: skip
    expected_issuer: str = _own(
        "sasl.oauthbearer.expected.issuer", default="", kind=Type.STRING,
        doc="A token must be of this issuer (claim `iss`).",
    )  # fmt: skip
    allow_unverified_audience: bool = _own(
        "sasl.oauthbearer.allow.unverified.audience", default=False, kind=Type.BOOLEAN,
        doc="Whether tokens for any audience are taken where no audience is expected. Otherwise one is required.",
    )  # fmt: skip
    allow_unverified_issuer: bool = _own(
        "sasl.oauthbearer.allow.unverified.issuer", default=False, kind=Type.BOOLEAN,
        doc="Whether tokens of any issuer are taken where no issuer is expected. Otherwise one is required.",
    )  # fmt: skip
    clock_skew_seconds: int = _own(
        "sasl.oauthbearer.clock.skew.seconds", default=30, kind=Type.INT, unit="seconds", at_least=0,
        at_most=3600, doc="By how much the clocks of this machine and of the issuer may differ.",
    )  # fmt: skip
    subject_claim: str = _own(
        "sasl.oauthbearer.sub.claim.name", default="sub", kind=Type.STRING,
        doc="The claim of a token that names the user.",
    )  # fmt: skip
    scope_claim: str = _own(
        "sasl.oauthbearer.scope.claim.name", default="scope", kind=Type.STRING,
        doc="The claim of a token that lists its scopes; it is checked to be text or a list of texts.",
    )  # fmt: skip
    groups_claim: str = _own(
        "ottla.sasl.oauthbearer.groups.claim.name", default="", kind=Type.STRING,
        doc="The claim of a token that lists the groups of the user, for access rules of `Group:NAME`. Empty means "
        "none.",
    )  # fmt: skip
