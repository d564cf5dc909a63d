"""Holds the certificates of the listeners: loads them, reads them again when they change, warns of their expiry.

Connections keep the terms of their handshake; the next ones get the new ones. What cannot be loaded leaves the old ones
in use, and is logged once for each content of the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker import listeners as endpoints
from ottla.broker.config import BrokerConfig
from ottla.core.clock import Clock
from ottla.core.security_protocols import SecurityProtocol
from ottla.core.settings import InvalidSettings, SettingProblem, listener_key
from ottla.net.tls import ListenerTls
from ottla.security.config import TlsConfig

if TYPE_CHECKING:  # imported for the first listener with TLS
    from ottla.net.identity import ConnectionIdentity
    from ottla.security.audit_log import AuditLog
    from ottla.security.distinguished_names import Certificate
    from ottla.security.tls import LoadedTls

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0
"""The files are read so often, and compared with what is in use."""

WARNING_SECONDS: Final = 24 * 3600.0

_CLIENT_AUTH: Final = "ssl.client.auth"
_IN_PLACE_OF: Final = {
    "ssl.keystore.certificate.chain": "keystore_location",
    "ssl.truststore.certificates": "truststore_location",
}


class _Entry:
    """One listener with TLS."""

    def __init__(self, config: TlsConfig, tls: ListenerTls, digest: bytes, certificates: list[Certificate]) -> None:
        self.config, self.tls, self.digest, self.certificates = config, tls, digest, certificates
        self.refused: tuple[TlsConfig, bytes] | None = None  # what could not be loaded, so that it is logged once


class ListenersTls:
    """The TLS of all listeners. Created with the broker; `watch` runs while it serves."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._entries: dict[str, _Entry] = {}
        self._changed = asyncio.Event()
        self._warned_at: float | None = None
        self.version = 0
        """Counts the loads: what is made of the certificates, such as a client's context, is made again then."""

    def load(self) -> None:
        """Load the certificates of all listeners. Raises InvalidSettings: the start ends."""
        problems = []
        for listener, config in _configs(self._config).items():
            try:
                loaded, digest = _load(config)
            except (ValueError, OSError) as error:
                problems.append(SettingProblem(*_set_as(self._config, listener, "ssl.keystore.location"), str(error)))
                continue
            self._entries[listener] = _Entry(config, ListenerTls(loaded.terms), digest, loaded.certificates)
        if problems:
            raise InvalidSettings(problems)
        self.version += 1

    def of(self, listener: str) -> ListenerTls | None:
        """Return the terms of a listener; None if it has no TLS."""
        entry = self._entries.get(listener)
        return None if entry is None else entry.tls

    def record_in(self, audit_log: AuditLog) -> None:
        """Record who signs in by a certificate, and who is refused."""
        for listener, entry in self._entries.items():
            entry.tls.on_handshake = partial(_record, audit_log, listener)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Load what changed settings name, soon."""
        self._config = config
        self._changed.set()

    def reload(self) -> None:
        """Read the files again, soon."""
        self._changed.set()

    async def watch(self) -> None:
        """Look for changed files and settings, and warn of certificates that expire, until it is cancelled."""
        while self._entries:
            self._warn_of_expiry()
            await self.update()
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()

    async def update(self) -> None:
        """Load what has changed: files or settings."""
        from ottla.security.tls import content_digest

        configs = _configs(self._config)
        for listener, entry in self._entries.items():
            config = configs[listener]
            try:
                digest = await asyncio.to_thread(content_digest, config)
            except OSError as error:
                self._log_refused(listener, entry, (config, b""), str(error))
                continue
            if (config, digest) in {(entry.config, entry.digest), entry.refused}:
                continue
            try:
                loaded, digest = await asyncio.to_thread(_load, config)
            except (ValueError, OSError) as error:
                self._log_refused(listener, entry, (config, digest), str(error))
                continue
            self._replace(listener, entry, config, loaded, digest)

    def _replace(self, listener: str, entry: _Entry, config: TlsConfig, loaded: LoadedTls, digest: bytes) -> None:
        entry.config, entry.digest, entry.certificates, entry.refused = config, digest, loaded.certificates, None
        entry.tls.terms = loaded.terms
        self.version += 1
        self._warned_at = None
        log.info(
            "listener %s: loaded changed certificates; the broker's own expires on %s",
            listener,
            _day(loaded.certificates[0].not_after),
        )

    @staticmethod
    def _log_refused(listener: str, entry: _Entry, refused: tuple[TlsConfig, bytes], why: str) -> None:
        if entry.refused != refused:
            entry.refused = refused
            log.error("listener %s: changed certificates cannot be used, the old ones stay in use: %s", listener, why)

    def _warn_of_expiry(self) -> None:
        now = self._clock.monotonic()
        if self._warned_at is not None and now - self._warned_at < WARNING_SECONDS:
            return
        self._warned_at = now
        today = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        for listener, entry in self._entries.items():
            within = timedelta(days=entry.config.expiry_warning_days)
            for certificate in entry.certificates if within else ():
                if certificate.not_after <= today:
                    log.error(
                        "listener %s: the certificate of %s has expired on %s: clients refuse it. Replace it, "
                        "without a restart",
                        listener,
                        certificate.subject,
                        _day(certificate.not_after),
                    )
                elif certificate.not_after - today <= within:
                    log.warning(
                        "listener %s: the certificate of %s expires on %s, in %d days",
                        listener,
                        certificate.subject,
                        _day(certificate.not_after),
                        (certificate.not_after - today).days,
                    )


def _record(audit_log: AuditLog, listener: str, host: str, identity: ConnectionIdentity | None, why: str) -> None:
    if identity is None:
        audit_log.sign_in_failed(principal="", host=host, listener=listener, mechanism="SSL", reason=why)
    else:
        principal = f"{identity.principal_type}:{identity.principal_name}"
        audit_log.signed_in(principal=principal, host=host, listener=listener, mechanism="SSL")


def check_tls(config: BrokerConfig, listeners: Iterable[str]) -> None:
    """Load the TLS of listeners without using it. Raises ValueError and OSError."""
    from ottla.security.tls import load_tls

    configs = _configs(config)
    for listener in listeners:
        if listener in configs:
            load_tls(configs[listener])


def tls_of_listener(config: BrokerConfig, listener: str) -> TlsConfig:
    """Return the settings of TLS of a listener.

    As in Kafka, clients that sign in with SASL need a certificate only if the setting is the listener's own. PEM text
    that was given while the broker runs takes the place of the file that its settings name.
    """
    tls = config.of_listener(TlsConfig, listener)
    changed: dict[str, str] = {}
    uses_sasl = endpoints.security_protocols(config.net)[listener].uses_sasl
    own = listener_key(listener, _CLIENT_AUTH)
    if uses_sasl and own not in config.given.keys() | config.dynamic.keys():
        changed["client_auth"] = "none"
    for text, location in _IN_PLACE_OF.items():
        if listener_key(listener, text) in config.dynamic:
            changed[location] = ""
    return TlsConfig(**{**tls.__dict__, **changed}) if changed else tls


def _configs(config: BrokerConfig) -> Mapping[str, TlsConfig]:
    """Return the settings of TLS by the names of the listeners that use it."""
    protocols: Mapping[str, SecurityProtocol] = endpoints.security_protocols(config.net)
    names = [address.listener for address in endpoints.to_listen_at(config.net)]
    return {name: tls_of_listener(config, name) for name in names if protocols[name].uses_tls}


def _load(config: TlsConfig) -> tuple[LoadedTls, bytes]:
    """Load certificates with the digest of the files. The digest comes first: a change in between is seen later.

    Raises ValueError (InvalidKeyStore, InvalidRules) and OSError.
    """
    from ottla.security.tls import content_digest, load_tls

    digest = content_digest(config)
    return load_tls(config), digest


def _set_as(config: BrokerConfig, listener: str, key: str) -> tuple[str, str]:
    """Return the name under which a setting of a listener was set, and its text."""
    own = listener_key(listener, key)
    name = own if own in config.given or key not in config.given else key
    return name, config.given[name].text if name in config.given else ""


def _day(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
