"""Makes what each listener with SASL offers, from the settings, and the users from the snapshot of the cluster."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.config import BrokerConfig
from ottla.broker.listeners import security_protocols, to_listen_at
from ottla.core.settings import InvalidSettings, SettingProblem, listener_key
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.security.config import OAUTHBEARER, PLAIN, SaslConfig
from ottla.security.sasl.credentials import HASHES, ScramCredential, TokenCredential, from_text
from ottla.security.sasl.jaas import PLAIN_MODULE, JaasConfig, parse_jaas
from ottla.security.sasl.mechanism import Exchange
from ottla.security.sasl.plain import PlainExchange
from ottla.security.sasl.scram import ScramExchange
from ottla.security.sasl.sign_in import ListenerSasl

if TYPE_CHECKING:  # imported where a listener has the mechanism, a broker tokens
    from ottla.security.delegation_tokens import DelegationTokens
    from ottla.security.sasl.oauthbearer import TokenValidator

log = logging.getLogger(__name__)


class SnapshotUsers:
    """Finds SCRAM credentials of users and tokens in the current snapshot: a change counts from the next sign-in on."""

    def __init__(self, cluster: MetadataCache, tokens: DelegationTokens | None) -> None:
        self._cluster, self._tokens = cluster, tokens

    def user(self, name: str, mechanism: str) -> ScramCredential | None:
        """Return the credential of a user."""
        text = self._cluster.current.user_settings(name).get(mechanism)
        if text is None:
            return None
        try:
            return from_text(text)
        except ValueError as error:
            log.error("the %s credential of user %s cannot be read: %s", mechanism, name, error)  # noqa: TRY400
            return None

    def token(self, token_id: str, mechanism: str) -> TokenCredential | None:
        """Return the credential of a delegation token."""
        if self._tokens is None:
            return None
        token, credential = self._tokens.find(token_id), self._tokens.credential(token_id, mechanism)
        if token is None or credential is None:
            return None
        return TokenCredential(token.owner.partition(":")[2], credential, token.expiry_ms)

    def unknown_users_key(self) -> bytes:
        """Return what the salts of unknown users are made from: the same on each broker and after a restart."""
        return hashlib.sha256(b"unknown users of " + self._cluster.current.cluster_id.encode()).digest()


class SaslListeners:
    """The listeners with SASL of a broker, checked. Raises InvalidSettings."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._problems: list[SettingProblem] = []
        self._validators: list[TokenValidator] = []  # of OAUTHBEARER
        self._makers: dict[str, dict[str, Callable[[SnapshotUsers], Exchange]]] = {}
        self.without_tls: list[str] = []  # listeners where passwords are sent as they are
        protocols = security_protocols(config.net)
        for endpoint in to_listen_at(config.net):
            protocol = protocols[endpoint.listener]
            if protocol.uses_sasl:
                self._add(endpoint.listener, uses_tls=protocol.uses_tls)
        if self._problems:
            raise InvalidSettings(self._problems)

    async def start(self) -> None:
        """Warn of what is not safe, and read the keys of tokens."""
        for listener in self.without_tls:
            log.warning("listener %s takes passwords without TLS (PLAIN): who sees the network sees them", listener)
        await asyncio.gather(*(validator.keys.start() for validator in self._validators))

    def close(self) -> None:
        """Read the keys of tokens no more."""
        for validator in self._validators:
            validator.keys.close()

    def open(self, users: SnapshotUsers) -> dict[str, ListenerSasl]:
        """Return what the listeners offer."""
        opened = {}
        for listener, makers in self._makers.items():
            sasl = self._config.of_listener(SaslConfig, listener)
            opened[listener] = ListenerSasl(
                exchanges={mechanism: partial(make, users) for mechanism, make in makers.items()},
                session_ms_max={
                    mechanism: self._config.of_listener(SaslConfig, listener, mechanism).session_ms_max
                    for mechanism in makers
                },
                failure_delay_s=sasl.failure_delay_ms / 1000,
            )
        return opened

    def _add(self, listener: str, *, uses_tls: bool) -> None:
        makers: dict[str, Callable[[SnapshotUsers], Exchange]] = {}
        for mechanism in self._config.of_listener(SaslConfig, listener).enabled_mechanisms:
            if mechanism in HASHES:
                makers[mechanism] = partial(_scram, mechanism)
            elif mechanism == PLAIN:
                makers[mechanism] = self._plain(listener)
                if not uses_tls:
                    self.without_tls.append(listener)
            elif mechanism == OAUTHBEARER:
                makers[mechanism] = self._oauthbearer(listener)
        if not makers:
            self._problem(listener_key(listener, "sasl.enabled.mechanisms"), "", "must name at least one mechanism")
        self._makers[listener] = makers

    def _plain(self, listener: str) -> Callable[[SnapshotUsers], Exchange]:
        jaas = self._jaas(listener, PLAIN, PLAIN_MODULE)
        passwords = {} if jaas is None else jaas.users
        if jaas is not None and not passwords:
            self._problem(_jaas_key(listener, PLAIN), "[hidden]", 'it has no users: user_NAME="password"')
        return lambda _users: PlainExchange(passwords)

    def _oauthbearer(self, listener: str) -> Callable[[SnapshotUsers], Exchange]:
        try:
            from ottla.security.sasl.oauthbearer import OAuthBearerExchange, TokenValidator
        except ImportError as error:
            key = listener_key(listener, "sasl.enabled.mechanisms")
            self._problem(key, OAUTHBEARER, f"{error.name} is not installed: it comes with ottla[security]")
            return _refused
        config = self._config.of_listener(SaslConfig, listener, OAUTHBEARER)
        try:
            validator = TokenValidator(config)
        except InvalidSettings as error:
            self._problems += error.problems
            return _refused
        self._validators.append(validator)
        return lambda _users: OAuthBearerExchange(validator)

    def _jaas(self, listener: str, mechanism: str, module: str) -> JaasConfig | None:
        key = _jaas_key(listener, mechanism)
        text = self._config.of_listener(SaslConfig, listener, mechanism).jaas_config
        if not text:
            self._problem(key, "", f"{mechanism} needs a login module: {module} required ...;")
            return None
        try:
            jaas = parse_jaas(text)
        except ValueError as error:
            self._problem(key, "[hidden]", str(error))
            return None
        if jaas.module != module:
            self._problem(key, "[hidden]", f"the login module of {mechanism} must be {module}: no class is loaded")
            return None
        return jaas

    def _problem(self, key: str, text: str, reason: str) -> None:
        self._problems.append(SettingProblem(key, text, reason))


def _jaas_key(listener: str, mechanism: str) -> str:
    return listener_key(listener, f"{mechanism.lower()}.sasl.jaas.config")


def _scram(mechanism: str, users: SnapshotUsers) -> Exchange:
    return ScramExchange(mechanism, users, users.unknown_users_key())


def _refused(_users: SnapshotUsers) -> Exchange:
    raise AssertionError("the settings are refused")
