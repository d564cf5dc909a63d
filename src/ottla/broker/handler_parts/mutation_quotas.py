"""Holds changes of topics to their client's quota of controller mutations (KIP-599): partitions created and deleted."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, TypeVar

from ottla.broker.requests.request import Request
from ottla.controller.topics import CreatePartitions, CreateTopic
from ottla.security.quotas.request_cost import MutationQuota

ChangeT = TypeVar("ChangeT", CreateTopic, CreatePartitions, str)


def mutation_quota(request: Request, *, strict_since: int) -> MutationQuota | None:
    """Return the quota that counts for a request; None if there is none. It is strict from a version on."""
    if request.cost is None:
        return None
    return request.cost.mutation_quota(is_strict=request.api_version >= strict_since)


def within_quota(
    quota: MutationQuota, changes: Sequence[ChangeT], partitions: Sequence[int], refused: MutableMapping[str, Any]
) -> list[ChangeT]:
    """Return the changes that are within the quota; note the error of the others by the name of the topic.

    A change without partitions is refused for another reason, and counts for nothing.
    """
    within: list[ChangeT] = []
    for change, count in zip(changes, partitions, strict=True):
        refusal = quota.refusal(count) if count else None
        if refusal is None:
            within.append(change)
        else:
            refused[change if isinstance(change, str) else change.name] = refusal
    return within
