"""Says where a broker serves HTTP, and refuses addresses that anybody on the network could read."""

from __future__ import annotations

import ssl

from ottla.broker.config import BrokerConfig
from ottla.broker.listeners import is_loopback
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.http.address import KEY, HttpAddress, parse_address
from ottla.security.config import TlsConfig

LISTENER = "HTTP"
"""The name for `listener.name.http.ssl...`."""


def http_address(config: BrokerConfig) -> HttpAddress | None:
    """Return where to serve HTTP; None if nowhere. Raises InvalidSettings."""
    text = config.http.listener
    if not text:
        return None
    address = parse_address(text)
    if is_loopback(address.host) or config.net.allow_insecure_listeners or (address.is_secure and config.http.token):
        return address
    missing = "set ottla.http.token" if address.is_secure else "write https://, and set ottla.http.token"
    why = (
        f"everybody who reaches this address could read the metrics and events: {missing}, or listen at 127.0.0.1, or "
        "insist with ottla.allow.insecure.listeners=true (--insecure-listeners)"
    )
    raise InvalidSettings([SettingProblem(KEY, text, why)])


def http_tls(config: BrokerConfig, address: HttpAddress) -> ssl.SSLContext | None:
    """Return what TLS needs where the address asks for it. Raises InvalidSettings."""
    if not address.is_secure:
        return None
    from ottla.security.tls import InvalidKeyStore, InvalidRules, load_tls

    try:
        return load_tls(config.of_listener(TlsConfig, LISTENER)).terms.context
    except (InvalidKeyStore, InvalidRules, OSError) as error:
        raise InvalidSettings([SettingProblem(KEY, config.http.listener, str(error))]) from error
