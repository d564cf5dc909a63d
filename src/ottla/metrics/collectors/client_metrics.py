"""Reads what clients have pushed of their own metrics (KIP-714)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ottla.broker.services import Services
from ottla.core.ids import id_text
from ottla.metrics.page import COUNTER, GAUGE, Page, family, labels_of
from ottla.metrics.reading import Reading

_GROUP = "Clients' own metrics"
_LABELS = "metric attributes client_id software client_instance_id"

INSTANCES = family("ottla_client_metrics_instances", GAUGE, "Clients that push metrics, or have asked", group=_GROUP)
PUSHES = family("ottla_client_metrics_pushes", COUNTER, "Pushes by their response", "error", group=_GROUP)
LEFT_OUT = family(
    "ottla_client_metrics_left_out",
    COUNTER,
    "Values that were pushed and are not kept, since there are too many",
    group=_GROUP,
)
VALUES = family("ottla_client_metric", GAUGE, "The last value that a client pushed", _LABELS, group=_GROUP)
COUNTS = family("ottla_client_counter", COUNTER, "The sum of what a client pushed of a counter", _LABELS, group=_GROUP)


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read the client instances."""
    clients = reading.services.client_metrics
    if clients is None:
        return
    page.add(INSTANCES, len(clients))
    page.add(LEFT_OUT, clients.left_out)
    for code, count in clients.answers.items():
        page.add(PUSHES, count, labels_of(error=code.name))
    for instance in clients.shown():
        client = instance.client
        theirs = labels_of(
            client_id=client.get("client_id", ""),
            software=software_of(client),
            client_instance_id=id_text(instance.instance_id),
        )
        for (metric, attributes), series in list(instance.series.items()):
            labels = f"{labels_of(metric=metric, attributes=attributes)},{theirs}"
            page.add(COUNTS if series.is_counter else VALUES, series.value, labels)
        if reading.slices.spend(1 + len(instance.series)):
            yield


def software_of(client: Mapping[str, str]) -> str:
    """Return the name and version of a client's library."""
    return f"{client.get('client_software_name', '')} {client.get('client_software_version', '')}".strip()


async def describe(services: Services, client_id: str) -> dict[str, object]:
    """Return what the instances with a client id have pushed, as values of JSON."""
    kept, clients = services.client_metrics, list[dict[str, object]]()
    async for instance in services.slices.each([] if kept is None else kept.shown()):
        if instance.client.get("client_id", "") != client_id:
            continue
        metrics = [
            {"metric": metric, "attributes": attributes, "is_counter": series.is_counter, "value": series.value}
            for (metric, attributes), series in sorted(instance.series.items())
            if math.isfinite(series.value)
        ]
        clients.append(
            {
                "client_id": client_id,
                "client_instance_id": id_text(instance.instance_id),
                "software": software_of(instance.client),
                "metrics": metrics,
            }
        )
        if services.slices.spend(len(metrics)):
            await services.slices.yield_to_loop()
    return {"broker": services.node_id, "clients": clients}
