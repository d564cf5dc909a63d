"""`ottla group clone`: creates a group with the offsets of another one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed
from ottla.cli.name_patterns import unknown_name
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_rows
from ottla.client.cluster import Cluster
from ottla.client.group_clone import CannotClone, clone_group
from ottla.client.groups import list_groups
from ottla.core.errors import GroupIdNotFound

EPILOG = "\b\nExample:\nottla group clone readers readers-test --topic orders"


def clone(
    source: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=completion.groups)],
    name: Annotated[str, typer.Argument(metavar="NEW_GROUP", help="The group to create.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only this topic; repeatable.", autocompletion=completion.topics),
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a group with the committed offsets of another one, which may be running.

    Of a share group the start offsets are copied.
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        try:
            offsets = await clone_group(cluster, source, name, topics=topic or [], dry_run=dry_run)
        except GroupIdNotFound:
            raise unknown_name(source, [g.group_id for g in await list_groups(cluster)], what="group") from None
        except CannotClone as error:
            raise CommandFailed(str(error), advice=f"see `ottla group describe {source}`") from None
        return [
            {"topic": tp.topic, "partition": tp.partition, "offset": at.offset} for tp, at in sorted(offsets.items())
        ]

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_rows(rows, ["topic", "partition", "offset"], shape)
    if shape is OutputFormat.TABLE:
        print(f"would create group {name}; nothing was changed" if dry_run else f"created group {name}")
