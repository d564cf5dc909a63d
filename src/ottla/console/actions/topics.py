"""Creates and deletes topics, adds partitions, and changes settings."""

from __future__ import annotations

from ottla.client import admin
from ottla.client.admin import AlterConfigOp, NewTopic
from ottla.console.plans import Plan, carry_out
from ottla.console.visit import INT_MAX, Refused, Visit, whole_number
from ottla.core.quantities import in_unit_of
from ottla.core.settings import AlterConfigOpType, ConfigResourceType
from ottla.http.web import Response


async def create(visit: Visit) -> Response:
    """Create a topic; the broker checks it before it is shown."""
    name, partitions = visit.field("name").strip(), whole(visit.field("partitions") or "-1", "partitions")
    replicas = whole(visit.field("replicas") or "-1", "replication factor")
    topic = NewTopic(name, partitions, replicas)
    cluster = await visit.cluster()
    ((checked, _),) = await admin.create_topics(cluster, [topic], validate_only=True)
    if checked.error is not None:
        raise checked.error
    words = ["topic", "create", name]
    words += ["--partitions", str(partitions)] if partitions > 0 else []
    words += ["--replicas", str(replicas)] if replicas > 0 else []

    async def apply() -> str:
        ((outcome, _),) = await admin.create_topics(cluster, [topic])
        if outcome.error is not None:
            raise outcome.error
        return f"Created topic {name}."

    shown = [[name, partitions if partitions > 0 else "default", replicas if replicas > 0 else "default"]]
    plan = Plan(
        f"Create topic {name}",
        visit.cli(*words),
        f"/topics/{name}",
        apply,
        ("Topic", "Partitions", "Replication factor"),
        shown,
        button="Create topic",
    )
    return await carry_out(visit, plan)


async def delete(visit: Visit) -> Response:
    """Delete a topic; its name is typed."""
    name = visit.path("topic")
    cluster, snapshot = await visit.cluster(), await visit.snapshot()

    async def apply() -> str:
        if visit.field("confirmation") != name:
            raise Refused(f"type the name of the topic, {name}, to delete it")
        (outcome,) = await admin.delete_topics(cluster, [name])
        if outcome.error is not None:
            raise outcome.error
        return f"Deleted topic {name}."

    topic = snapshot.topics.get(name)
    readers = sorted(visit.workspace.sampler.groups_of(name))
    plan = Plan(
        f"Delete topic {name}",
        visit.cli("topic", "delete", name),
        "/topics",
        apply,
        ("Topic", "Partitions", "Groups with offsets here"),
        [[name, "" if topic is None else len(topic.partitions), ", ".join(readers) or "none"]],
        note="All its records are deleted. This cannot be undone.",
        button="Delete topic",
        is_danger=True,
        confirmation=name,
    )
    return await carry_out(visit, plan)


async def add_partitions(visit: Visit) -> Response:
    """Add partitions to a topic."""
    name, count = visit.path("topic"), whole(visit.field("partitions"), "partitions")
    cluster = await visit.cluster()
    checked = await admin.create_partitions(cluster, name, count, validate_only=True)
    if checked.error is not None:
        raise checked.error

    async def apply() -> str:
        outcome = await admin.create_partitions(cluster, name, count)
        if outcome.error is not None:
            raise outcome.error
        return f"Topic {name} has {count} partitions."

    before = len((await cluster.topic(name, fresh=True)).partitions)
    plan = Plan(
        f"Add partitions to {name}",
        visit.cli("topic", "alter", name, "--partitions", count),
        f"/topics/{name}",
        apply,
        ("Topic", "Partitions now", "Then"),
        [[name, before, count]],
        note="The partition of a key changes: records of one key are in two partitions. It cannot be undone.",
        button="Add partitions",
    )
    return await carry_out(visit, plan)


async def alter_setting(visit: Visit) -> Response:
    """Set a setting of a topic, or delete it, so that the default has effect."""
    name, setting, value = visit.path("topic"), visit.field("name").strip(), visit.field("value").strip()
    is_delete = visit.field("operation") == "delete"
    cluster = await visit.cluster()
    try:
        value = in_unit_of(setting, value)
    except ValueError as error:
        raise Refused(f"{setting}: {error}") from None
    kind = AlterConfigOpType.DELETE if is_delete else AlterConfigOpType.SET
    change = AlterConfigOp(setting, kind, None if is_delete else value)
    await admin.alter_configs(cluster, ConfigResourceType.TOPIC, name, [change], validate_only=True)
    entries = await admin.describe_configs(cluster, ConfigResourceType.TOPIC, name, keys=[setting])

    async def apply() -> str:
        await admin.alter_configs(cluster, ConfigResourceType.TOPIC, name, [change])
        return f"{setting} of {name} has its default again." if is_delete else f"Set {setting} of {name}."

    words = ["unset", f"topic/{name}", setting] if is_delete else ["set", f"topic/{name}", f"{setting}={value}"]
    plan = Plan(
        f"Change {setting} of {name}",
        visit.cli("config", *words),
        f"/topics/{name}/settings",
        apply,
        ("Setting", "Value now", "Then"),
        [[setting, entries[0].value if entries else "", "the default" if is_delete else value]],
    )
    return await carry_out(visit, plan)


def whole(text: str, what: str) -> int:
    """Read a whole number of a form, also a negative one. Raises Refused.

    >>> whole("12", "partitions"), whole("-1", "replicas")
    (12, -1)
    """
    sign, digits = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text)
    number = whole_number(digits, INT_MAX)
    if number is None:
        raise Refused(f"{what}: {text!r} is not a whole number")
    return sign * number
