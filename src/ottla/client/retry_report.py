"""Reports failures that are retried: one message when they begin and one when they have ended."""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.errors import CannotConnect
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NetworkException, RequestTimedOut

_REPORT_AFTER_S = 2.0  # errors such as LEADER_NOT_AVAILABLE are normal for a moment; a lost connection is not


class RetryReport:
    """Follows the operations of one client that are retried. Without a `report` there are no messages.

    All that fail at the same time are one failure: it has ended when the last one of them has succeeded.
    """

    def __init__(self, report: Callable[[str], None] | None, clock: Clock) -> None:
        """Take `report`, which gets a sentence for people."""
        self._report = report
        self._now = clock.monotonic
        self._failing: set[object] = set()
        self._since = 0.0
        self._reported: KafkaError | CannotConnect | None = None

    def failed(self, operation: object, error: KafkaError | CannotConnect, *, left_s: float) -> None:
        """Note a failure of an operation that is retried for `left_s` more seconds."""
        now = self._now()
        if not self._failing:
            self._since = now
        self._failing.add(operation)
        if self._report is None or self._reported or not (_is_lost(error) or now - self._since > _REPORT_AFTER_S):
            return
        self._reported = error
        message = error.message if isinstance(error, KafkaError) else str(error)
        self._report(f"{message.rstrip('.')}. Retrying for up to {max(left_s, 0):.0f} s")

    def succeeded(self, operation: object) -> None:
        """Note that an operation has succeeded."""
        if operation not in self._failing:
            return
        self._failing.discard(operation)
        if not self._failing and self._report is not None and self._reported is not None:
            what = "the connection" if _is_lost(self._reported) else "it"
            self._report(f"{what} works again, after {self._now() - self._since:.1f} s")
        self._reset_if_over()

    def given_up(self, operation: object) -> None:
        """Note that an operation is retried no longer."""
        self._failing.discard(operation)
        self._reset_if_over()

    def _reset_if_over(self) -> None:
        if not self._failing:
            self._reported = None


def _is_lost(error: KafkaError | CannotConnect) -> bool:
    return isinstance(error, CannotConnect | NetworkException | RequestTimedOut)
