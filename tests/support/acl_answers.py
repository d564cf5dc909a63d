"""Reduces responses to what depends on what a user may do: codes and names."""

from __future__ import annotations

from typing import Any, Final

from tests.support.wire_client import NO_ID

NAMES = frozenset({"name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key", "user"})
CODES = frozenset(
    {
        "error_code",
        "partition_error_code",
        "topic_config_error_code",
        "acknowledge_error_code",
        "topic_authorized_operations",
        "cluster_authorized_operations",
        "authorized_operations",
    }
)
OF_THE_CLUSTER = frozenset({"configs", "brokers", "features", "nodes"})
"""Fields that are not about what a user may do, and differ."""

DENIED: Final = frozenset({29, 30, 31, 53, 63, 65})
"""The codes of the errors by which something is denied."""


def compared(answer: Any) -> Any:
    """What a user learns: codes and names. Internal topics are left out, and the order of arrays."""
    if isinstance(answer, list):
        return sorted(filter(None, map(compared, answer)), key=repr)
    if not isinstance(answer, dict) or str(answer.get("name") or "").startswith("__"):
        return None
    found = {key: value for key, value in answer.items() if key in CODES or (key in NAMES and value)}
    if ":" in str(found.get("key")):  # of a share partition: group, id of the topic, index
        found["key"] = str(found["key"]).split(":")[0]
    if answer.get("topic_id", NO_ID) not in (None, NO_ID):
        found["has_topic_id"] = True
    if answer.get("token_id"):
        found["has_token_id"] = True
    for key, value in answer.items():
        if isinstance(value, dict | list) and key not in OF_THE_CLUSTER and (inner := compared(value)):
            found[key] = inner
    return found


def is_denied(answer: Any) -> bool:
    """Whether a part of a response says that the user may not do that."""
    if isinstance(answer, dict):
        codes = {answer.get(key) for key in ("error_code", "partition_error_code")}
        return not codes.isdisjoint(DENIED) or any(map(is_denied, answer.values()))
    return isinstance(answer, list) and any(map(is_denied, answer))
