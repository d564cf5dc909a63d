"""Reports failures that are retried: one message when they begin and one when they have ended."""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.errors import CannotConnect
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NetworkException, RequestTimedOut

_REPORT_AFTER_S = 2.0  # errors such as LEADER_NOT_AVAILABLE are normal for a moment; a lost connection is not


class RetryReport:
    """Follows the retries of one client. Without a `report` there are no messages."""

    def __init__(self, report: Callable[[str], None] | None, clock: Clock) -> None:
        """Take `report`, which gets a sentence for people."""
        self._report = report
        self._now = clock.monotonic
        self._since: float | None = None
        self._is_reported = False

    def failed(self, error: KafkaError | CannotConnect, *, left_s: float) -> None:
        """Note a failure that is retried for `left_s` more seconds."""
        now = self._now()
        if self._since is None:
            self._since = now
        is_lost = isinstance(error, CannotConnect | NetworkException | RequestTimedOut)
        if self._report is None or self._is_reported or not (is_lost or now - self._since > _REPORT_AFTER_S):
            return
        self._is_reported = True
        message = error.message if isinstance(error, KafkaError) else str(error)
        self._report(f"{message}. Retrying for up to {max(left_s, 0):.0f} s")

    def succeeded(self) -> None:
        """Note the end of the failures."""
        if self._report is not None and self._is_reported and self._since is not None:
            self._report(f"the connection works again, after {self._now() - self._since:.1f} s")
        self._since, self._is_reported = None, False
