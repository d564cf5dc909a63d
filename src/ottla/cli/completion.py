"""Completes names of topics, groups and profiles in a shell; topics and groups are those of the selected cluster.

A completion must not fail or take long: without an answer within a second there are no suggestions.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from ottla.cli.errors import CommandFailed

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

_TIMEOUT_S = 1.0


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with the text; internal ones only if it begins with `__`."""

    async def names(cluster: Cluster) -> list[str]:
        from ottla.client.admin import list_topics

        return [topic.name for topic in await list_topics(cluster)]

    return [name for name in _ask(ctx, names, incomplete) if incomplete.startswith("__") or not name.startswith("__")]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin with the text."""

    async def names(cluster: Cluster) -> list[str]:
        from ottla.client.groups import list_groups

        return [group.group_id for group in await list_groups(cluster)]

    return _ask(ctx, names, incomplete)


def profiles(incomplete: str) -> list[str]:
    """Return the profiles that begin with the text."""
    from ottla.cli.profile_file import Profiles

    try:
        return [name for name in sorted(Profiles.load(os.environ).clusters) if name.startswith(incomplete)]
    except CommandFailed:
        return []


def _ask(ctx: typer.Context, names: Callable[[Cluster], Awaitable[list[str]]], incomplete: str) -> list[str]:
    from ottla.cli.connection import ConnectionOptions, run_on_cluster

    target = ConnectionOptions(ctx.params.get("brokers"), ctx.params.get("profile"), _TIMEOUT_S)
    try:
        found = run_on_cluster(target, names)
    except CommandFailed:
        return []
    return [name for name in found if name.startswith(incomplete)]
