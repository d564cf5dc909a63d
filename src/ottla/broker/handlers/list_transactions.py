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

from functools import partial
from typing import Any, NamedTuple

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.regexes import InvalidRegex, compile_regex
from ottla.metadata_store.cluster_view import ClusterView
from ottla.transactions.metadata import STATES_BY_NAME, TransactionMetadata
from ottla.transactions.metadata import TransactionState as State
from ottla.transactions.transaction_runtime import TransactionRuntime
from ottla.wire.generated.list_transactions import (
    MESSAGES,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each transactional id", refusal="left out")


class _Filters(NamedTuple):
    """The filters of a request; a transactional id is in none of the states if only unknown ones are named."""

    states: frozenset[State] | None
    producer_ids: frozenset[int]
    started_before_ms: int | None
    pattern: Any  # re2 has no types

    def match(self, transactional_id: str, metadata: TransactionMetadata) -> bool:
        return (
            metadata.state is not State.DEAD
            and (not self.producer_ids or metadata.producer_id in self.producer_ids)
            and (self.states is None or metadata.state in self.states)
            and (self.started_before_ms is None or metadata.started_wall_ms < self.started_before_ms)
            and (self.pattern is None or self.pattern.fullmatch(transactional_id) is not None)
        )


def answer(request: Request, body: ListTransactionsRequest, _view: ClusterView) -> InParts[ListTransactionsResponse]:
    """List what all filters let through."""
    try:
        runtimes = request.services.coordinators.transactions.transactional_ids()
        pattern = compile_regex(body.transactional_id_pattern) if body.transactional_id_pattern else None
    except KafkaError as error:
        return InParts(ListTransactionsResponse(error_code=error.code))
    except InvalidRegex:
        return InParts(ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION))
    names = dict.fromkeys(body.state_filters)
    filters = _Filters(
        states=frozenset(STATES_BY_NAME[name] for name in names if name in STATES_BY_NAME) if names else None,
        producer_ids=frozenset(body.producer_id_filters),
        started_before_ms=request.services.clock.wall_ms() - body.duration_filter
        if body.duration_filter >= 0
        else None,
        pattern=pattern,
    )
    response = ListTransactionsResponse(unknown_state_filters=[name for name in names if name not in STATES_BY_NAME])
    return InParts(response, Each(runtimes, partial(_transaction, filters), into=response.transaction_states))


def _transaction(
    filters: _Filters, request: Request, runtime: TransactionRuntime, _view: ClusterView
) -> TransactionState | None:
    metadata = runtime.metadata
    if not filters.match(runtime.transactional_id, metadata) or DESCRIBE.denies(
        request, runtime.transactional_id, log_if_denied=False
    ):
        return None
    return TransactionState(
        transactional_id=runtime.transactional_id,
        producer_id=metadata.producer_id,
        transaction_state=metadata.state.kafka_name,
    )


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE,))
