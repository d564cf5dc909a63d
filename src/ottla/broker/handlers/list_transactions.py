"""ListTransactions (key 66), versions 0 to 2.

What it does
  Answers an empty list, as there are no transactions, with the state filters that name no state of a transaction.

What it does not do
  Transactions are not served yet. The pattern of transactional ids is not compiled, because there is nothing to match.

Versions
  v1   a filter by duration (KIP-994)
  v2   a pattern of transactional ids (KIP-1152)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)


async def handle(ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """No transactions."""
    unknown = {state: None async for state in ctx.services.slices.each(request.state_filters) if state not in STATES}
    return ListTransactionsResponse(unknown_state_filters=list(unknown))
