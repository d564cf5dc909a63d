"""Makes the services of a handler that needs few of them."""

from __future__ import annotations

import random
from typing import Any, cast

from ottla.broker.delayed_operations import DelayedOperations
from ottla.broker.record_validation_queue import RecordValidationQueue
from ottla.broker.services import Services
from ottla.broker.sessions.fetch_sessions import FetchSessions
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import StillClock, open_directories


def bare_services(
    *, config: Any = None, cluster: Any = None, controller: Any = None, controller_channel: Any = None
) -> Services:
    """Return services of which a test has only those that it gives, and an empty simulated disk."""
    clock, absent = StillClock(), cast("Any", None)
    return Services(
        node_id=1,
        config=config,
        clock=clock,
        cluster=cluster,
        controller=controller,
        controller_channel=controller_channel,
        nodes=absent,
        replicas=Replicas(open_directories(SimDisk()), node_id=1, defaults=LogConfig(), clock=clock),
        coordinators=absent,
        producer_ids=absent,
        fetch_sessions=FetchSessions(slots=1, rng=random.Random(1)),
        record_validation=RecordValidationQueue(clock, absent, absent),
        delayed_operations=DelayedOperations(),
    )
