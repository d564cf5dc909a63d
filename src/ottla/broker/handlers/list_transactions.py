"""ListTransactions (key 66), versions 0 to 2.

What it does
  Lists the transactional ids that this broker coordinates, filtered by state, producer id, age of the transaction and
  pattern of the id; a state filter that names no state is returned.

What it does not do
  Nothing is left out.

Versions
  v1   a filter by duration (KIP-994)
  v2   a pattern of transactional ids (KIP-1152)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.regexes import InvalidRegex, compile_regex
from ottla.transactions.metadata import STATES_BY_NAME
from ottla.transactions.metadata import TransactionState as State
from ottla.wire.messages.list_transactions import (
    MESSAGES,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


async def handle(request: Request, body: ListTransactionsRequest) -> ListTransactionsResponse:
    """List what all filters let through."""
    services = request.services
    try:
        found = services.coordinators.transactions.transactional_ids()
        pattern = compile_regex(body.transactional_id_pattern) if body.transactional_id_pattern else None
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    except InvalidRegex:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    names = dict.fromkeys(body.state_filters)
    states = {STATES_BY_NAME[name] for name in names if name in STATES_BY_NAME}
    producer_ids = set(body.producer_id_filters)
    now_ms = services.clock.wall_ms()
    response = ListTransactionsResponse(unknown_state_filters=[name for name in names if name not in STATES_BY_NAME])
    async for runtime in services.slices.each(found):
        metadata = runtime.metadata
        if (
            metadata.state is not State.DEAD
            and (not producer_ids or metadata.producer_id in producer_ids)
            and (not names or metadata.state in states)
            and (body.duration_filter < 0 or now_ms - metadata.started_wall_ms > body.duration_filter)
            and (pattern is None or pattern.fullmatch(runtime.transactional_id))
        ):
            response.transaction_states.append(
                TransactionState(
                    transactional_id=runtime.transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.kafka_name,
                )
            )
    return response


HANDLER = Awaited(MESSAGES, handle)
