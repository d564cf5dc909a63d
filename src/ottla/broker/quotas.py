"""Applies the quotas of the cluster's snapshots to the requests and connections of this broker.

Requests are measured only while some client has a quota: without one they pass no code of quotas.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.requests.driver import RequestDriver
from ottla.broker.requests.stages import Accounting
from ottla.core.events import EventLog
from ottla.metadata_store.cluster_view import ClusterView
from ottla.net.server import Listeners
from ottla.security.config import QuotaConfig
from ottla.security.quotas.client_quotas import ClientQuotas
from ottla.security.quotas.matching import QuotaTable


class Quotas:
    """Follows the quotas of the cluster. `accounting` is that of the broker itself, with quotas or without."""

    def __init__(
        self,
        config: QuotaConfig,
        driver: RequestDriver,
        listeners: Listeners,
        accounting: Accounting | None,
        now: Callable[[], float],
        events: EventLog | None = None,
    ) -> None:
        self._driver, self._listeners, self._accounting = driver, listeners, accounting
        self._events = events
        self._table = QuotaTable()
        self.clients = ClientQuotas(config, self._table, now)
        self._is_measuring = False

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Apply what differs between two snapshots."""
        if old.configs is new.configs or not self._table.update(old, new):
            return
        self.clients.look_up_again()
        self._listeners.limits.use_rates(*self._table.connection_rates())
        if self._table.is_empty == self._is_measuring:
            self._is_measuring = not self._is_measuring
            self._driver.account_with(self._measuring() if self._is_measuring else self._accounting)

    def _measuring(self) -> Accounting:
        from ottla.broker.requests.quota_accounting import QuotaAccounting

        return QuotaAccounting(self.clients, self._accounting, self._events)
