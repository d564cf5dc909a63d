"""The clients of brokers of Ottla: what each pushes of its own metrics (KIP-714), and which had to wait for quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.client.broker_metrics import (
    CLIENT_COUNTER,
    CLIENT_THROTTLED,
    CLIENT_VALUE,
    OF_CLIENTS,
    BrokerPages,
    Sample,
    listeners_of,
    read_pages,
)
from ottla.console.pages.page import Page
from ottla.console.paging import page_number, page_of
from ottla.console.visit import Visit
from ottla.http.web import Response

_VALUES_MAX = 200
"""Values of one client that are shown."""
_THROTTLED_MAX = 50


@dataclass(frozen=True, slots=True)
class ClientValue:
    """A value that a client has pushed. A counter is the sum of what was pushed."""

    metric: str
    attributes: str
    value: float
    is_counter: bool


@dataclass(slots=True)
class ClientInstance:
    """A client, with the broker that it pushes to."""

    instance_id: str
    client_id: str
    software: str
    broker: int
    values: list[ClientValue] = field(default_factory=list)

    @property
    def shown(self) -> list[ClientValue]:
        """The values by name, as many as a page shows."""
        return sorted(self.values, key=lambda value: (value.metric, value.attributes))[:_VALUES_MAX]


def instances_of(pages: BrokerPages) -> list[ClientInstance]:
    """Return the clients of all pages, sorted by their ids."""
    instances: dict[tuple[int, str], ClientInstance] = {}
    for broker, page in pages.pages.items():
        for sample in (sample for name in (CLIENT_VALUE, CLIENT_COUNTER) for sample in page.samples.get(name, ())):
            labels = sample.labels
            instance_id = labels.get("client_instance_id", "")
            if (broker, instance_id) not in instances:
                instances[broker, instance_id] = ClientInstance(
                    instance_id, labels.get("client_id", ""), labels.get("software", ""), broker
                )
            instances[broker, instance_id].values.append(_value_of(sample))
    return sorted(instances.values(), key=lambda client: (client.client_id, client.instance_id))


def _value_of(sample: Sample) -> ClientValue:
    labels: Mapping[str, str] = sample.labels
    is_counter = sample.name != CLIENT_VALUE
    return ClientValue(labels.get("metric", ""), labels.get("attributes", ""), sample.value, is_counter)


@dataclass(frozen=True, slots=True)
class ThrottledClient:
    """A client that had to wait for its quotas, and for how long since its brokers started."""

    client_id: str
    user: str
    seconds: float


def throttled_of(pages: BrokerPages) -> list[ThrottledClient]:
    """Return the clients that had to wait on any broker, the longest first."""
    sums: dict[tuple[str, str], float] = {}
    for page in pages.pages.values():
        for sample in page.samples.get(CLIENT_THROTTLED, ()):
            key = sample.labels.get("client_id", ""), sample.labels.get("user", "")
            sums[key] = sums.get(key, 0.0) + sample.value
    delayed = [ThrottledClient(client_id, user, seconds) for (client_id, user), seconds in sums.items() if seconds > 0]
    return sorted(delayed, key=lambda client: (-client.seconds, client.client_id, client.user))


async def client_pages(visit: Visit) -> tuple[bool, BrokerPages]:
    """Read the pages of the brokers, with the rights of the request to find them; and whether there are any."""
    cluster = await visit.cluster()
    nodes = list((await visit.snapshot()).described.nodes)
    listeners = await listeners_of(cluster, nodes)
    pages = await read_pages(listeners, nodes, token=visit.options.http_token, families=OF_CLIENTS)
    return bool(listeners), pages


def selected(clients: Iterable[ClientInstance], search: str) -> list[ClientInstance]:
    """Return the clients that have a text in their id, instance or software."""
    text = search.lower()
    return [
        client
        for client in clients
        if text in client.client_id.lower() or text in client.instance_id.lower() or text in client.software.lower()
    ]


async def clients(visit: Visit) -> Response:
    """List the clients that push metrics, with their values."""
    search = visit.query("search").strip()
    has_listeners, pages = await client_pages(visit)
    everyone = instances_of(pages)
    return visit.page(
        "clients.html",
        title="Clients",
        listed=page_of(selected(everyone, search), page_number(visit.query("page")), size=25),
        search=search,
        total=len(everyone),
        throttled=throttled_of(pages)[:_THROTTLED_MAX],
        has_listeners=has_listeners,
        unread=pages.unread,
        cli=visit.cli("top", "--show", "clients,requests"),
    )


PAGES = (Page("/clients", clients),)
