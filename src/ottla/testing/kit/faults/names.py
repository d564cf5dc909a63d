"""Finds APIs and errors by Kafka's names for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.core.error_codes import ErrorCode
from ottla.wire.apis import ApiKey


def name_of(key: ApiKey) -> str:
    """Return Kafka's name of an API.

    >>> name_of(ApiKey.INIT_PRODUCER_ID)
    'InitProducerId'
    """
    return "".join(part.capitalize() for part in key.name.split("_"))


_KEYS = {name_of(key).lower(): key for key in (*APIS, *INTER_BROKER_APIS)}


def api_named(name: str) -> ApiKey:
    """Return the API of a name: `InitProducerId`, or `INIT_PRODUCER_ID`. Raises ValueError, which names the closest."""
    key = _KEYS.get(name.replace("_", "").lower())
    if key is None:
        raise ValueError(f"no API {name!r}{_suggestion(name, map(name_of, _KEYS.values()))}")
    return key


def error_named(name: str) -> ErrorCode:
    """Return the error of a name: `NOT_LEADER_OR_FOLLOWER`. Raises ValueError, which names the closest."""
    error = ErrorCode.__members__.get(name.upper())
    if error is None or error is ErrorCode.NONE:
        names = (error.name for error in ErrorCode if error is not ErrorCode.NONE)
        raise ValueError(f"no error {name!r}{_suggestion(name, names)}")
    return error


def check_field(name: str, known: Iterable[str], of: str) -> None:
    """Raise ValueError for a name that is not one of the known ones."""
    names = list(known)
    if name not in names:
        raise ValueError(f"{of} has no {name!r}{_suggestion(name, names)}")


def _suggestion(name: str, names: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
