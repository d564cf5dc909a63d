"""`ottla txn`: lists and describes transactions, finds hanging ones, and aborts them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.name_patterns import existing_topic, select
from ottla.cli.offset_options import read_partitions
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout, parse_seconds
from ottla.cli.output import ItemResult, duration_text, show_fields, show_json, show_results, show_rows
from ottla.client import transaction_admin
from ottla.client.cluster import Cluster
from ottla.client.transaction_admin import OpenTransaction
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition

app = typer.Typer(
    cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Transactions."
)
HANGING_AFTER_S = 900.0
"""Kafka's default of `transaction.max.timeout.ms`: a coordinator ends what it knows by then."""
OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]
"""The states in which a transaction is open: the duration that brokers filter by goes on after its end."""


@app.command("list")
def list_transactions(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[PATTERN]...", help="Only ids that match, such as 'app-*'.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only this state, such as Ongoing; repeatable.")
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(
            "--longer-than", parser=parse_seconds, metavar="SECONDS", help="Only transactions open longer: 90, 5m."
        ),
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the transactional ids of all brokers, all or those that match a pattern."""
    longer_than_ms = -1 if longer_than is None else int(longer_than * 1000)
    states = state or ([] if longer_than is None else OPEN_STATES)

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        listings = await transaction_admin.list_transactions(cluster, states=states, longer_than_ms=longer_than_ms)
        by_id = {listing.transactional_id: listing for listing in listings}
        return [
            {
                "transactional_id": name,
                "state": by_id[name].state,
                "producer_id": by_id[name].producer_id,
                "coordinator": by_id[name].coordinator_id,
            }
            for name in select(patterns or [], by_id, what="transactional id")
        ]

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    columns = ["transactional_id", "state", "producer_id", "coordinator"]
    show_rows(rows, columns, shape, empty="no transactions")


@app.command()
def describe(
    names: Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.")],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show transactional ids: state, producer, timeout, and the partitions of an open transaction."""
    now_ms = SystemClock().wall_ms()

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        return [await _describe(cluster, name, now_ms) for name in names]

    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    if shape is OutputFormat.JSON:
        show_json(found[0] if len(names) == 1 else found)
        return
    for number, described in enumerate(found):
        if number:
            print()
        show_fields({**described, "open_seconds": duration_text(described["open_seconds"])}, shape)


async def _describe(cluster: Cluster, name: str, now_ms: int) -> dict[str, Any]:
    try:
        description = await transaction_admin.describe_transaction(cluster, name)
    except KafkaError as error:
        raise _unknown_id(name, error) from None
    is_open = description.state in OPEN_STATES and description.start_ms is not None
    return {
        "transactional_id": description.transactional_id,
        "state": description.state,
        "producer_id": description.producer_id,
        "producer_epoch": description.producer_epoch,
        "timeout_ms": description.timeout_ms,
        "start_ms": description.start_ms,
        "open_seconds": max(now_ms - (description.start_ms or 0), 0) / 1000 if is_open else None,
        "coordinator": description.coordinator_id,
        "partitions": [str(tp) for tp in description.partitions],
    }


@app.command()
def hanging(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Only these topics, or patterns.", autocompletion=completion.topics),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2,5-7", help="Only these partitions.")
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than", parser=parse_seconds, metavar="SECONDS", help="Time since the last record: 900, 15m."
        ),
    ] = HANGING_AFTER_S,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find transactions that nothing will end: they are open on a partition, and their coordinator does not know it.

    Readers of committed records stop at such a transaction. `ottla txn abort TOPIC --partition P --start-offset N`
    aborts it.
    """
    now_ms = SystemClock().wall_ms()
    numbers = None if partition is None else read_partitions("--partition", partition)

    async def work(cluster: Cluster) -> list[OpenTransaction]:
        known = (await cluster.refresh(None)).topics
        names = select(topics or [], known, what="topic")
        topic_partitions = [
            TopicPartition(name, each.partition)
            for name in names
            for each in known[name].partitions
            if numbers is None or each.partition in numbers
        ]
        return await transaction_admin.hanging_transactions(
            cluster, topic_partitions, older_than_ms=int(older_than * 1000), now_ms=now_ms
        )

    rows = [
        {
            "topic": transaction.tp.topic,
            "partition": transaction.tp.partition,
            "start_offset": transaction.start_offset,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "coordinator_epoch": transaction.coordinator_epoch,
            "transactional_id": transaction.transactional_id,
            "last_timestamp_ms": transaction.last_timestamp_ms,
            "age": duration_text(max(now_ms - transaction.last_timestamp_ms, 0) / 1000),
        }
        for transaction in run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    ]
    columns = ["topic", "partition", "start_offset", "producer_id", "producer_epoch", "transactional_id", "age"]
    show_rows(rows, columns, shape, empty="no hanging transactions")


@app.command()
def abort(
    name: Annotated[str, typer.Argument(metavar="ID|TOPIC", help="A transactional id; a topic with --start-offset.")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="NUMBER", help="The partition of the topic.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, metavar="OFFSET", help="Where the hanging transaction begins."),
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the open transaction of a transactional id, and fence its producer.

    With --partition and --start-offset: abort a hanging transaction on one partition of a topic, as `ottla txn hanging`
    lists it. The records of a transaction that its coordinator still knows may be torn apart by that.
    """
    target = ConnectionOptions(brokers, profile, timeout)
    if (partition is None) != (start_offset is None):
        raise usage_error("--partition and --start-offset belong together", "see `ottla txn hanging`")
    if partition is None or start_offset is None:
        text = run_on_cluster(target, lambda cluster: _abort_by_id(cluster, name, dry_run=dry_run))
        named = name
    else:
        tp, offset = TopicPartition(name, partition), start_offset
        text = run_on_cluster(target, lambda cluster: _abort_on_partition(cluster, tp, offset, dry_run=dry_run))
        named = str(tp)
    show_results([ItemResult(named, "would abort" if dry_run else "aborted", text)], shape)


async def _abort_by_id(cluster: Cluster, name: str, *, dry_run: bool) -> str:
    """Abort; returns the line for people."""
    try:
        description = await transaction_admin.describe_transaction(cluster, name)
        if not dry_run:
            await transaction_admin.abort_transaction(cluster, name)
    except KafkaError as error:
        raise _unknown_id(name, error) from None
    what = (
        f"the transaction of {name} on {len(description.partitions)} partitions"
        if description.partitions
        else f"nothing: {name}"
    )
    end = "" if description.partitions else " had no open transaction; its producer is fenced"
    if dry_run:
        return f"would abort {what}{'' if description.partitions else ' has no open transaction'}; nothing was changed"
    return f"aborted {what}{end}"


async def _abort_on_partition(cluster: Cluster, tp: TopicPartition, start_offset: int, *, dry_run: bool) -> str:
    """Abort; returns the line for people."""
    await existing_topic(cluster, tp.topic)
    transactions = await transaction_admin.open_transactions(cluster, [tp])
    matching = [open_transaction for open_transaction in transactions if open_transaction.start_offset == start_offset]
    if not matching:
        raise not_found(
            f"no open transaction begins at offset {start_offset} of {tp}", "list them with `ottla txn hanging`"
        )
    (transaction,) = matching
    shown = f"the transaction of producer {transaction.producer_id} on {tp} from offset {start_offset}"
    if dry_run:
        return f"would abort {shown}; nothing was changed"
    await transaction_admin.abort_on_partition(cluster, transaction)
    return f"aborted {shown}"


def _unknown_id(name: str, error: KafkaError) -> Exception:
    if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return not_found(f"there is no transactional id {name}", "list them with `ottla txn list`")
    return error
