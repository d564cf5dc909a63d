"""Finds settings of security that look as if they secured something and do not.

Those that no listener uses have no effect; and a mechanism that sends secrets secures nothing without TLS.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.listeners import is_loopback, security_protocols, to_listen_at
from ottla.core.security_protocols import SecurityProtocol
from ottla.core.settings import SettingText, load, split_listener_key
from ottla.net.config import NetConfig
from ottla.security.config import OAUTHBEARER, PLAIN, SaslConfig

_OF_AUTHORIZER = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
_OFF = frozenset({"", "none", "false", "null"})
_SENDING_SECRETS = {PLAIN: "passwords", OAUTHBEARER: "tokens"}
_INTER_BROKER = "security.inter.broker.protocol"


def security_without_effect(all_given: Mapping[str, SettingText], net: NetConfig) -> list[str]:
    """Return a warning for each kind of security that settings ask for and no listener has. Raises InvalidSettings."""
    given = {key: value for key, value in all_given.items() if value.text.strip().lower() not in _OFF}
    protocols = security_protocols(net)
    used = {protocols[endpoint.listener] for endpoint in to_listen_at(net)}
    warnings = []
    if not any(protocol.uses_tls for protocol in used) and (unused := _named(given, "ssl.")):
        warnings.append(f"no listener has TLS, so nothing is encrypted; without effect: {unused}. Use SSL or SASL_SSL")
    if not any(protocol.uses_sasl for protocol in used) and (unused := _named(given, "sasl.")):
        warnings.append(
            f"no listener has SASL, so no client signs in; without effect: {unused}. Use SASL_SSL or SASL_PLAINTEXT"
        )
    if "authorizer.class.name" not in given:
        unused = ", ".join(f"{key} ({given[key].origin})" for key in sorted(_OF_AUTHORIZER & given.keys()))
        if unused:
            warnings.append(
                f"there is no authorizer, so every client may do everything; without effect: {unused}. Set "
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            )
    asked = given.get(_INTER_BROKER)
    if asked is not None and asked.text.upper() not in {protocol.name for protocol in used}:
        names = ", ".join(sorted(protocol.name for protocol in used))
        warnings.append(
            f"{_INTER_BROKER}={asked.text} ({asked.origin}) has no effect on a broker alone, and one of a cluster "
            f"would not start with it: the listeners have {names}"
        )
    return warnings + _secrets_in_clear(all_given, net)


def _secrets_in_clear(given: Mapping[str, SettingText], net: NetConfig) -> list[str]:
    """Return a warning for each listener on the network by which passwords or tokens are sent without encryption."""
    protocols = security_protocols(net)
    warnings: list[str] = []
    for endpoint in to_listen_at(net):
        if protocols[endpoint.listener] is SecurityProtocol.SASL_PLAINTEXT and not is_loopback(endpoint.host):
            enabled = load(SaslConfig, given, listener=endpoint.listener).enabled_mechanisms
            warnings += (
                f"listener {endpoint.listener} is not encrypted and {mechanism} sends {secrets} as they are: all "
                f"who see its traffic can sign in by them. Map it to SASL_SSL, or let clients sign in by SCRAM"
                for mechanism, secrets in _SENDING_SECRETS.items()
                if mechanism in enabled
            )
    return warnings


def _named(given: Mapping[str, SettingText], prefix: str) -> str:
    """List the settings of all listeners with this prefix, and their origins."""
    return ", ".join(
        f"{key} ({value.origin})"
        for key, value in sorted(given.items())
        if split_listener_key(key)[1].startswith(prefix)
    )
