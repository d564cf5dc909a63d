"""Validates changes of a listener's TLS while the broker runs, as the broker that they are for (KIP-226).

A request may give certificates as PEM text. It may not name a file, which could be any that this process can read: it
may repeat the location that is in use, and the file is read again then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.config import BrokerConfig, declaration_of
from ottla.controller.config_changes import ConfigChange
from ottla.core.errors import InvalidRequest
from ottla.core.settings import AlterConfigOpType, InvalidSettings, listener_key, split_listener_key

if TYPE_CHECKING:  # with the first listener that has TLS
    from ottla.broker.listener_tls import ListenersTls

SECTION: Final = "tls"
_LOCATIONS: Final = {"ssl.keystore.location": "keystore_location", "ssl.truststore.location": "truststore_location"}


def is_tls_setting(key: str) -> bool:
    """Return whether a setting is one of TLS, of a listener or of all.

    >>> is_tls_setting("listener.name.outside.ssl.client.auth"), is_tls_setting("max.connections")
    (True, False)
    """
    declaration = declaration_of(key)
    return declaration is not None and declaration[0] == SECTION


def check_names(changes: Sequence[ConfigChange], *, of_one_broker: bool) -> None:
    """Refuse settings of TLS that are not of one listener of one broker. Raises InvalidRequest."""
    asked = [change.key for change in changes if is_tls_setting(change.key)]
    of_all = [key for key in asked if not split_listener_key(key)[0]]
    if of_all:
        raise InvalidRequest(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{', '.join(of_all)}]"
        )
    if asked and not of_one_broker:
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level, broker id must be specified: [{', '.join(asked)}]"
        )


def locations_repeated(config: BrokerConfig, changes: Sequence[ConfigChange]) -> bool:
    """Return whether a request only repeats locations, so that their files are read again.

    Raises InvalidRequest for another location, and for one beside other changes.
    """
    from ottla.security.config import TlsConfig

    named = [change for change in changes if split_listener_key(change.key)[1] in _LOCATIONS]
    for change in named:
        listener, key = split_listener_key(change.key)
        current = getattr(config.of_listener(TlsConfig, listener), _LOCATIONS[key]) if listener else None
        if change.op is not AlterConfigOpType.SET or change.value != current:
            text = "ssl.keystore.certificate.chain" if "keystore" in key else "ssl.truststore.certificates"
            raise InvalidRequest(
                f"{change.key} cannot be changed by a request: change the broker's file, or give the certificates "
                f"as text, by {listener_key(listener, text)}"
            )
    if named and len(named) < len(changes):
        raise InvalidRequest("A location is repeated in a request of its own, to have its file read again")
    return bool(named)


async def check_certificates(
    config: BrokerConfig,
    tls: ListenersTls | None,
    stored: Mapping[str, str],
    changes: Sequence[ConfigChange],
    decoded: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> None:
    """Load the certificates that a listener would have. `decoded` decrypts secrets. Raises InvalidRequest."""
    from ottla.broker.listener_tls import check_tls

    listeners = {split_listener_key(change.key)[0] for change in changes if is_tls_setting(change.key)}
    for listener in listeners:
        if tls is None or tls.of(listener) is None:
            raise InvalidRequest(f"This broker has no listener {listener} with TLS")
    values = dict(stored)
    for change in changes:
        if change.op is AlterConfigOpType.DELETE:
            values.pop(change.key, None)
        else:
            values[change.key] = change.value or ""
    try:
        await asyncio.to_thread(check_tls, config.with_overrides(decoded(values)), listeners)
    except InvalidSettings as error:
        first = error.problems[0]
        raise InvalidRequest(f"Invalid value {first.text} for configuration {first.key}: {first.reason}") from None
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"The certificates of {', '.join(sorted(listeners))} cannot be used: {error}") from None
