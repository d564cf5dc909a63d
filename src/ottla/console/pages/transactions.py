"""The list of transactions, what holds the last stable offset of a topic, and a transaction that can be aborted."""

from __future__ import annotations

from urllib.parse import quote

from ottla.client.offsets import available_bounds
from ottla.client.transaction_admin import (
    OpenTransaction,
    TransactionListing,
    abort_on_partition,
    abort_transaction,
    describe_transaction,
    list_transactions,
    open_transactions,
)
from ottla.console.pages.page import Page
from ottla.console.paging import page_number, page_of
from ottla.console.plans import Plan, carry_out
from ottla.console.snapshot import partitions_of
from ottla.console.visit import INT_MAX, Refused, Visit, whole_number
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.http.web import Response

OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


async def transactions(visit: Visit) -> Response:
    """List the transactional ids; with a topic also what is open there."""
    snapshot, cluster = await visit.snapshot(), await visit.cluster()
    search, topic, shows_open = visit.query("search").strip(), visit.query("topic"), visit.query("open") == "1"
    listings = [
        listing
        for listing in await list_transactions(cluster)
        if search.lower() in listing.transactional_id.lower() and (not shows_open or listing.state in OPEN_STATES)
    ]
    holding: list[OpenTransaction] = []
    held = 0
    if topic:
        if topic not in snapshot.topics:
            raise Refused(f"there is no topic {topic}", 404)
        tps = partitions_of(snapshot.topics[topic])
        holding = await open_transactions(cluster, tps)
        ends, _ = await available_bounds(cluster, tps)
        stable, _ = await available_bounds(cluster, tps, read_committed=True)
        held = sum(max(0, ends[tp].end_offset - stable[tp].end_offset) for tp in tps if tp in ends and tp in stable)
    owners = {listing.producer_id: listing for listing in await list_transactions(cluster)} if holding else {}
    listed = page_of(listings, page_number(visit.query("page")))
    return visit.page(
        "transactions.html",
        title="Transactions",
        listed=listed,
        search=search,
        topic=topic,
        shows_open=shows_open,
        held=held,
        holding=[(transaction, owners.get(transaction.producer_id)) for transaction in holding],
        open_states=OPEN_STATES,
        now_ms=SystemClock().wall_ms(),
        cli=visit.cli("txn", "hanging", topic) if topic else visit.cli("txn", "list"),
    )


async def transaction(visit: Visit) -> Response:
    """Show a transactional id, and the offsets that its transaction holds."""
    name, cluster = visit.path("transaction"), await visit.cluster()
    described = await describe_transaction(cluster, name)
    holds = [
        held
        for held in (await open_transactions(cluster, described.partitions) if described.partitions else [])
        if held.producer_id == described.producer_id
    ]
    now_ms = SystemClock().wall_ms()
    return visit.page(
        "transaction.html",
        title=name,
        transaction=described,
        holds=holds,
        age_s=None if described.start_ms is None else (now_ms - described.start_ms) / 1000,
        is_open=described.state in OPEN_STATES,
        reasons=visit.reasons.of_transaction(described, now_ms),
        cli=visit.cli("txn", "describe", name),
    )


async def abort(visit: Visit) -> Response:
    """Abort the open transaction of a transactional id."""
    name, cluster = visit.path("transaction"), await visit.cluster()
    described = await describe_transaction(cluster, name)
    if described.state not in OPEN_STATES:
        raise Refused(f"{name} has no open transaction: its state is {described.state}")

    async def apply() -> str:
        await abort_transaction(cluster, name)
        return f"Aborted the transaction of {name}; its producer is fenced."

    plan = Plan(
        f"Abort the transaction of {name}",
        visit.cli("txn", "abort", name),
        f"/transactions/{quote(name, safe='')}",
        apply,
        ("Partition",),
        [[str(tp)] for tp in described.partitions],
        note="Its records are not shown to readers of committed records. Its producer gets PRODUCER_FENCED.",
        button="Abort transaction",
        is_danger=True,
    )
    return await carry_out(visit, plan)


async def abort_hanging(visit: Visit) -> Response:
    """Abort a transaction on one partition of which its coordinator knows nothing."""
    topic, cluster = visit.path("topic"), await visit.cluster()
    number, start = whole_number(visit.path("partition"), INT_MAX), visit.path("offset")
    if number is None:
        raise Refused(f"topic {topic} has no such partition", 404)
    tp = TopicPartition(topic, number)
    opened = next(
        (candidate for candidate in await open_transactions(cluster, [tp]) if str(candidate.start_offset) == start),
        None,
    )
    if opened is None:
        raise Refused(f"no transaction is open on {tp} since offset {start}", 404)
    owner = next((candidate for candidate in await list_transactions(cluster, producer_ids=[opened.producer_id])), None)
    if owner is not None and await _covers(visit, owner, tp):
        raise Refused(f"its coordinator knows it as {owner.transactional_id}: abort it there")

    async def apply() -> str:
        await abort_on_partition(cluster, opened)
        return f"Wrote an abort marker to {tp}."

    plan = Plan(
        f"Abort the hanging transaction on {tp}",
        visit.cli("txn", "abort", topic, "--partition", tp.partition, "--start-offset", start),
        f"/transactions?topic={topic}",
        apply,
        ("Partition", "Since offset", "Producer id"),
        [[str(tp), opened.start_offset, str(opened.producer_id)]],
        note="No coordinator will end it: readers of committed records wait for it.",
        button="Write abort marker",
        is_danger=True,
    )
    return await carry_out(visit, plan)


async def _covers(visit: Visit, owner: TransactionListing, tp: TopicPartition) -> bool:
    described = await describe_transaction(await visit.cluster(), owner.transactional_id)
    return tp in described.partitions


PAGES = (
    Page("/transactions", transactions),
    Page("/transactions/{transaction:path}", transaction),
    Page("/transactions/{transaction:path}/abort", abort, "POST"),
    Page("/topics/{topic}/transactions/{partition}/{offset}/abort", abort_hanging, "POST"),
)
