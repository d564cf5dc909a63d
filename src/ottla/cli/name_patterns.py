"""Selects topics and groups by name or by shell pattern: `orders`, `'ord*'`, `'*-[0-9]'`."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from ottla.cli.errors import not_found, usage_error
from ottla.client.admin import list_topics
from ottla.client.cluster import Cluster
from ottla.client.metadata import TopicInfo
from ottla.core.errors import UnknownTopicOrPartition

_WILDCARDS = frozenset("*?[")
_COMMANDS = {"transactional id": "txn"}  # where the command is not named as what it lists


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards.

    >>> is_pattern("ord*"), is_pattern("orders")
    (True, False)
    """
    return not _WILDCARDS.isdisjoint(text)


def select(texts: Sequence[str], known: Iterable[str], *, what: str) -> list[str]:
    """Return the names that the texts select, sorted; all of them without texts.

    A name with wildcards in it is that name if it exists. A pattern selects a name that begins with `__`, such as an
    internal topic, only if it begins with `__` itself. Raises `CommandFailed` for a text that selects nothing.

    >>> select(["ord*"], ["orders", "clicks"], what="topic")
    ['orders']
    """
    names = sorted(known)
    found: set[str] = set()
    for text in texts or ("*",):
        if text in names:
            found.add(text)
            continue
        matching = [
            name
            for name in names
            if is_pattern(text)
            and fnmatch.fnmatchcase(name, text)
            and (not texts or text.startswith("__") or not name.startswith("__"))
        ]
        if not matching and texts:
            raise unknown_name(text, names, what=what)
        found.update(matching)
    return sorted(found)


def selected_for_deletion(texts: Sequence[str], known: Iterable[str], *, what: str, is_allowed: bool) -> list[str]:
    """Replace the patterns by what they select. Raises `CommandFailed` listing it unless deleting it is allowed."""
    names = list(known)
    patterns = [text for text in texts if is_pattern(text) and text not in names]
    found = select(patterns, names, what=what) if patterns else []
    if found and not is_allowed:
        raise usage_error(
            f"{len(found)} {what}s match {' '.join(patterns)}: {', '.join(found)}", "add --yes to delete all of them"
        )
    return list(dict.fromkeys((*(text for text in texts if text not in patterns), *found)))


def unknown_name(text: str, known: Iterable[str], *, what: str) -> Exception:
    """Return the error for a name that does not exist, with the most similar one that does."""
    advice = f"list the {what}s with `ottla {_COMMANDS.get(what, what)} list`"
    if is_pattern(text):
        return not_found(f"no {what} matches {text}", advice)
    return not_found(f"there is no {what} {text}{did_you_mean(text, known)}", advice)


async def existing_topic(cluster: Cluster, name: str) -> TopicInfo:
    """Return a topic. Raises `CommandFailed` with a similar name if it does not exist, or the broker's `KafkaError`."""
    try:
        return await cluster.topic(name, fresh=True)
    except UnknownTopicOrPartition:
        raise unknown_name(name, [topic.name for topic in await list_topics(cluster)], what="topic") from None


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or nothing.

    >>> did_you_mean("ordes", ["orders", "clicks"])
    '; did you mean orders?'
    """
    close = difflib.get_close_matches(text, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
