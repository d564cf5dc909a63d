"""Puts the web console into the process of a broker: `ottla server --console`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker import listeners as endpoints
from ottla.broker.broker import Broker
from ottla.broker.config import BrokerConfig
from ottla.broker.http_endpoint import http_address
from ottla.cli.connection import client_settings
from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.connection import Security
from ottla.client.errors import CannotConnect
from ottla.client.properties import REGISTRY, InvalidProperty, security
from ottla.client.sasl import Sasl
from ottla.console.app import application
from ottla.console.options import LOOPBACK, ConsoleOptions
from ottla.console.workspace import Connect
from ottla.core.security_protocols import SecurityProtocol
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.http.address import KEY
from ottla.metrics.companion import BrokerCompanion

if TYPE_CHECKING:  # it needs libraries of the pipeline
    from ottla.console.registry import RegistryValues

LISTENER_DEFAULT = "127.0.0.1:8080"
_ORDER = (SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL, SecurityProtocol.SSL)


def _registry() -> RegistryValues | None:
    """Return what decodes by the registry of OTTLA_CLIENT_SETTINGS. Raises InvalidSettings."""
    url = client_settings(os.environ).get(REGISTRY)
    if url is None:
        return None
    try:
        from ottla.console.registry import RegistryValues

        return RegistryValues(url)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed: it needs the extra pipeline"
        raise InvalidSettings([SettingProblem(REGISTRY, url, why)]) from None
    except ValueError as error:
        raise InvalidSettings([SettingProblem(REGISTRY, url, str(error))]) from None


class ConsoleCompanion(BrokerCompanion):
    """Serves the console besides metrics and health. It is a client of the broker like any other."""

    def __init__(self, config: BrokerConfig) -> None:
        """Choose the broker's listener that the console uses. Raises InvalidSettings."""
        if not config.http.listener:
            config = replace(config, http=replace(config.http, listener=LISTENER_DEFAULT))
        protocols = endpoints.security_protocols(config.net)
        names = [endpoint.listener for endpoint in endpoints.to_listen_at(config.net)]
        self._listener_name = min(names, key=lambda name: _ORDER.index(protocols[name]))
        self._protocol = protocols[self._listener_name]
        self._own: Broker | None = None
        address = http_address(config)
        assert address is not None
        is_local = endpoints.is_loopback(address.host)
        if not is_local and not self._protocol.uses_sasl:
            why = "everybody who reaches it could use the console: listen at 127.0.0.1, or have a listener with SASL"
            raise InvalidSettings([SettingProblem(KEY, config.http.listener, why)])
        options = ConsoleOptions(
            connect=self._connect(self._security(None)),
            cluster_name="own cluster",
            may_change=is_local,
            connect_as=self._connect_as() if self._protocol.uses_sasl else None,
            hosts=LOOPBACK if is_local else None,
            is_https=address.is_secure,
            registry=_registry(),
            http_token=config.http.token,
        )
        super().__init__(config, application(options))

    def start(self, broker: Broker) -> None:
        """Listen. Raises OSError and InvalidSettings."""
        self._own = broker
        super().start(broker)

    def _security(self, sasl: Sasl | None) -> Security:
        """Return how to connect; what TLS trusts is in OTTLA_CLIENT_SETTINGS. Raises InvalidSettings."""
        if not self._protocol.uses_tls:
            return Security(None, sasl)
        of_tls = {name: value for name, value in client_settings(os.environ).items() if name.startswith("ssl.")}
        try:
            return replace(security({"security.protocol": "SSL", **of_tls}), sasl=sasl)
        except InvalidProperty as error:
            raise InvalidSettings([SettingProblem(error.name, "", str(error))]) from None

    def _connect_as(self) -> Callable[[str, str], Connect]:
        def connect_as(name: str, password: str) -> Connect:
            return self._connect(self._security(Sasl("SCRAM-SHA-512", name, password)))

        return connect_as

    def _connect(self, secured: Security) -> Connect:
        async def connect() -> Cluster:
            options = ClientOptions(client_id="ottla-console", security=secured)
            return await Cluster.connect([self._address()], options=options)

        return connect

    def _address(self) -> Address:
        """Return the address that the broker advertises for its listener. Raises CannotConnect."""
        services = None if self._own is None else self._own.services
        known = None if services is None else services.cluster.current.brokers.get(services.node_id)
        if known is None:
            raise CannotConnect("this broker", "it has not started yet")
        return Address(*known.endpoints[self._listener_name])
