"""Decides whether a broker is alive and whether it is ready, and says why not.

Alive means that its event loop turns. Ready means that clients can be sent to it. What an orchestrator should do about
it differs: a broker that is not alive is restarted, and one that is not ready is left alone (docs/metrics.md).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.broker import Broker


class Health(NamedTuple):
    """Holds why a broker is not well; no reason: it is."""

    reasons: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Return whether there is no reason against it."""
        return not self.reasons


def readiness(broker: Broker) -> Health:
    """Return why clients should not be sent to a broker. Called on its loop."""
    services = broker.services
    if services is None:
        return Health(("the broker is starting: it opens its log directories",))
    reasons = []
    if services.stopping.is_set():
        reasons.append("the broker is stopping")
    elif not broker.is_serving:
        reasons.append("the broker is starting: it does not accept connections yet")
    if not services.controller.is_connected:
        reasons.append("there is no session with the metadata store: nothing can be changed, and others may lead")
    elif broker.is_serving and services.node_id not in services.cluster.current.brokers:
        reasons.append("the broker is not registered in the cluster")
    directories = services.replicas.directories
    if not directories.online:
        failed = ", ".join(f"{path} ({why})" for path, why in directories.offline.items())
        reasons.append(f"no log directory can be used: {failed}")
    return Health(tuple(reasons))


def liveness(silent_s: float, limit_s: float) -> Health:
    """Return why a broker should be restarted: its loop has not turned for longer than the limit."""
    if silent_s <= limit_s:
        return Health()
    return Health((f"the event loop has not turned for {silent_s:.1f} s",))
