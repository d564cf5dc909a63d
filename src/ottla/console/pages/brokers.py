"""The map of the cluster, and the page of a broker."""

from __future__ import annotations

from ottla.client import admin
from ottla.console.pages.page import Page
from ottla.console.pages.settings import settings_of
from ottla.console.samples import CLUSTER_RECORDS
from ottla.console.visit import Refused, Visit
from ottla.core.settings import ConfigResourceType
from ottla.http.web import Response


async def cluster_map(visit: Visit) -> Response:
    """Show the brokers by rack, what they lead, their disks, and all that is not well."""
    snapshot = await visit.snapshot()
    under = sum(partition.is_under_replicated for partition in snapshot.unhealthy)
    offline = sum(partition.is_offline for partition in snapshot.unhealthy)
    return visit.page(
        "cluster.html",
        title="Cluster",
        snapshot=snapshot,
        reasons=visit.reasons.of_cluster(snapshot),
        under_replicated=under,
        offline=offline,
        rate=visit.workspace.sampler.ring.rate_now(CLUSTER_RECORDS),
        cli=visit.cli("cluster", "health"),
    )


async def broker(visit: Visit) -> Response:
    """Show a broker: its disks, and its settings."""
    snapshot = await visit.snapshot()
    text = visit.path("broker")
    state = next((candidate for candidate in snapshot.brokers if str(candidate.node_id) == text), None)
    if state is None:
        raise Refused(f"there is no broker {text}", 404)
    cluster = await visit.cluster()
    entries: list[admin.ConfigEntry] = []
    if not state.trouble:
        entries = await admin.describe_configs(
            cluster, ConfigResourceType.BROKER, text, documentation=True, synonyms=True
        )
    return visit.page(
        "broker.html",
        title=f"Broker {text}",
        broker=state,
        is_controller=snapshot.described.controller_id == state.node_id,
        reasons=visit.reasons.of_broker(state),
        settings=settings_of(visit, entries),
        cli=visit.cli("config", "describe", f"broker/{text}"),
    )


PAGES = (Page("/", cluster_map), Page("/brokers/{broker}", broker))
