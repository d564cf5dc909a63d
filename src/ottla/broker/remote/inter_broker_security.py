"""Makes connections to other brokers as the listener between brokers wants them: with a certificate, and a password."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.config import BrokerConfig
from ottla.broker.listener_tls import ListenersTls, tls_of_listener
from ottla.broker.listeners import security_protocols
from ottla.core.settings import InvalidSettings, SettingProblem, listener_key
from ottla.security.config import SaslConfig
from ottla.security.sasl.jaas import parse_jaas

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import Dial
    from ottla.client.sasl import Sasl
    from ottla.client.tls import Tls


class InterBrokerSecurity:
    """The security of connections to other brokers. A certificate that was loaded again counts from the next one on."""

    def __init__(self, listener: str, tls: ListenersTls) -> None:
        self._listener, self._tls = listener, tls
        self._dial: Dial | None = None
        self._version = -1  # of the certificates that `_dial` was made with

    def dial(self, config: BrokerConfig) -> Dial:
        """Return what opens a connection. Raises InvalidKeyStore."""
        from ottla.client.connection import Security, dialer

        if self._dial is None or self._version != self._tls.version:
            self._version = self._tls.version
            self._dial = dialer(Security(_client_tls(config, self._listener)))
        return self._dial


def _client_tls(config: BrokerConfig, listener: str) -> Tls | None:
    """Return the TLS of this broker as a client of another one; None if the listener has none."""
    if not security_protocols(config.net)[listener].uses_tls:
        return None
    from ottla.client.tls import Tls
    from ottla.security.tls import key_store_of, private_key_of, trust_store_of

    tls = tls_of_listener(config, listener)
    return Tls(
        trust=trust_store_of(tls),
        chain=key_store_of(tls),
        key=private_key_of(tls),
        key_password=tls.key_password or None,
        check_hostname=bool(tls.endpoint_identification),
        protocols=tls.enabled_protocols,
        ciphers=tls.cipher_suites,
    )


def inter_broker_sasl(config: BrokerConfig, listener: str) -> Sasl | None:
    """Return how this broker signs in to others; None if that listener has no SASL. Raises InvalidSettings."""
    protocol = security_protocols(config.net).get(listener)
    if protocol is None or not protocol.uses_sasl:
        return None
    from ottla.client.sasl import Sasl
    from ottla.security.config import OAUTHBEARER

    mechanism = config.sasl.inter_broker_mechanism
    if mechanism == OAUTHBEARER:
        problem = "brokers sign in to each other with SCRAM or PLAIN: Ottla's broker gets no tokens"
        raise InvalidSettings([SettingProblem("sasl.mechanism.inter.broker.protocol", mechanism, problem)])
    key = listener_key(listener, f"{mechanism.lower()}.sasl.jaas.config")
    try:
        options = parse_jaas(config.of_listener(SaslConfig, listener, mechanism).jaas_config).options
        return Sasl(mechanism, options["username"], options["password"])
    except (ValueError, KeyError):
        problem = 'brokers sign in to each other with it: ...LoginModule required username="..." password="...";'
        raise InvalidSettings([SettingProblem(key, "[hidden]", problem)]) from None
