"""Reads the subscriptions to clients' metrics from the settings of the cluster, and matches clients with them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ottla.broker.entity_config import ClientMetricsConfig
from ottla.core.checksums import crc32c
from ottla.core.regexes import InvalidRegex, compile_regex
from ottla.core.settings import InvalidSettings, SettingText, load
from ottla.metadata_store.cluster_view import EntityConfig

log = logging.getLogger(__name__)

CLIENT_PROPERTIES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""Properties that a subscription may match."""

ALL_METRICS: Final = "*"
DEFAULT_INTERVAL_MS: Final = 300_000
"""The longest interval of any client, and that of a client which no subscription matches."""


_LITERAL: Final = re.compile(r"[\w-]+")
"""Needs no RE2, which is an extra."""


class Subscription(NamedTuple):
    """The metrics that matching clients push, and the interval."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Any]  # compiled expressions by property

    def matches(self, client: Mapping[str, str]) -> bool:
        """Return whether each expression matches the whole of the client's property."""
        return all(name in client and regex.fullmatch(client[name]) is not None for name, regex in self.match.items())


class Subscribed(NamedTuple):
    """The metrics that one client instance is asked for, by all subscriptions that match it."""

    subscription_id: int
    metrics: list[str]
    interval_ms: int


def parse_match(patterns: Iterable[str]) -> dict[str, Any]:
    """Compile selectors, `name=expression`, with RE2. Raises ValueError with Kafka's words.

    >>> parse_match(["client_id=a=b"])
    Traceback (most recent call last):
    ValueError: Illegal client matching pattern: client_id=a=b
    """
    compiled = {}
    for pattern in patterns:
        name, _, expression = (part.strip() for part in pattern.partition("="))
        expression = expression.rstrip("=")  # as Java splits it
        if not expression or "=" in expression or name not in CLIENT_PROPERTIES:
            raise ValueError(f"Illegal client matching pattern: {pattern}")
        try:
            compiled[name] = re.compile(expression) if _LITERAL.fullmatch(expression) else compile_regex(expression)
        except InvalidRegex as error:
            raise ValueError(f"Illegal client matching pattern: {pattern}: {error}") from None
    return compiled


def read_subscriptions(stored: Mapping[str, EntityConfig]) -> list[Subscription]:
    """Return the subscriptions that are stored. One that cannot be read matches no client."""
    found = []
    for name, entity in stored.items():
        if not entity.values:
            continue
        try:
            given = {key: SettingText(text, "") for key, text in entity.values.items()}
            config = load(ClientMetricsConfig, given)
            found.append(Subscription(config.metrics, config.interval, parse_match(config.match)))
        except (InvalidSettings, ValueError) as error:
            log.warning("the client-metrics subscription %s is not used: %s", name, error)
    return found


def subscribed(subscriptions: Iterable[Subscription], client: Mapping[str, str], instance: bytes) -> Subscribed:
    """Return what a client instance pushes: everything that a matching subscription names, at the shortest interval.

    The id changes with what is asked for.
    """
    metrics: set[str] = set()
    interval_ms = DEFAULT_INTERVAL_MS
    for subscription in subscriptions:
        if subscription.matches(client):
            metrics.update(subscription.metrics)
            interval_ms = min(interval_ms, subscription.interval_ms)
    names = [ALL_METRICS] if ALL_METRICS in metrics else sorted(metrics)
    checksum = crc32c(f"{names}{interval_ms}".encode(), crc32c(instance))
    return Subscribed(checksum - (1 << 32) if checksum >> 31 else checksum, names, interval_ms)
