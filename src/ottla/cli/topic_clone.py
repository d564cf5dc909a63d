"""`ottla topic clone`: creates a topic like another one, and copies the records if asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed
from ottla.cli.name_patterns import existing_topic
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ProgressBar, show_fields, show_json
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.topic_clone import clone_of, copy_records, records_to_copy
from ottla.core.clock import SystemClock

EPILOG = "\b\nExample:\nottla topic clone orders orders-test --records"


def clone(
    source: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)],
    name: Annotated[str, typer.Argument(metavar="NEW_TOPIC", help="The topic to create.")],
    records: Annotated[bool, typer.Option("--records", help="Copy the committed records too.")] = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a topic with the partitions, replicas and settings of another one.

    With --records the records are copied to the same partitions, in their order, with keys, headers and timestamps;
    their offsets are new. Records that come meanwhile are not copied.
    """

    async def work(cluster: Cluster) -> tuple[NewTopic, int]:
        topic = await existing_topic(cluster, source)
        new_topic = await clone_of(cluster, topic, name)
        bounds = await records_to_copy(cluster, topic) if records else {}
        total = sum(span.end_offset - span.start_offset for span in bounds.values())
        outcome, _ = (await create_topics(cluster, [new_topic], validate_only=dry_run))[0]
        if outcome.error is not None:
            raise outcome.error
        if dry_run or not records:
            return new_topic, total
        copied = 0

        def note(count: int) -> None:
            nonlocal copied
            copied = count
            progress.update(count)

        with ProgressBar("records", total=total) as progress:
            try:
                return new_topic, await copy_records(cluster, bounds, name, clock=SystemClock(), on_copied=note)
            except Exception as error:
                raise CommandFailed(
                    f"topic {name} was created, and about {copied} of {total} records were copied: {error}",
                    advice=f"delete it with `ottla topic delete {name}`, and try again",
                ) from error

    created, count = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    fields = {
        "name": name,
        "result": "would create" if dry_run else "created",
        "partitions": created.partitions,
        "replicas": created.replication_factor,
        "records": count,
        "configs": dict(created.configs),
    }
    if shape is OutputFormat.JSON:
        show_json(fields)
        return
    show_fields({name: value for name, value in fields.items() if name != "configs"}, shape)
    for key, value in created.configs.items():
        print(f"  {key}={value}")
