"""Completes names of topics, groups, profiles and settings in a shell; topics and groups are the selected cluster's.

A completion must not fail or take long: without an answer within a second there are no suggestions.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
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
    from ottla.cli.connection import load_profiles

    try:
        return [name for name in sorted(load_profiles(os.environ).clusters) if name.startswith(incomplete)]
    except CommandFailed:
        return []


def resources(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `topic/NAME`, `group/NAME` and `broker` for the resources that begin with the text."""
    kind, slash, name = incomplete.partition("/")
    if not slash:
        return [word for word in ("topic/", "group/", "broker") if word.startswith(kind)]
    names = {"topic": topics, "group": groups}.get(kind)
    return [] if names is None else [f"{kind}/{found}" for found in names(ctx, name)]


def settings_of_resource(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the settings of the resource that the command line names."""
    from ottla.cli.resource_argument import parse_resource

    async def names(cluster: Cluster) -> list[str]:
        from ottla.client.admin import describe_configs

        kind, name = parse_resource(str(ctx.params.get("resource", "")))
        return [entry.name for entry in await describe_configs(cluster, kind, name)]

    return _ask(ctx, names, incomplete)


def changes_of_resource(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `NAME=` for the settings of the resource that the command line names."""
    return _assignments(settings_of_resource(ctx, incomplete), incomplete)


def topic_setting_names(incomplete: str) -> list[str]:
    """Return the topic settings that begin with the text."""
    from ottla.storage.config import topic_settings as declared

    return sorted(name for name in declared() if name.startswith(incomplete))


def topic_settings(incomplete: str) -> list[str]:
    """Return `NAME=` for the topic settings that begin with the text."""
    return _assignments(topic_setting_names(""), incomplete)


def broker_settings(incomplete: str) -> list[str]:
    """Return `NAME=` for the broker settings that begin with the text."""
    from ottla.broker.config import declared

    return _assignments(declared(), incomplete)


def client_settings(incomplete: str) -> list[str]:
    """Return `NAME=` for the client settings that begin with the text."""
    from ottla.client.properties import SUPPORTED

    return _assignments(SUPPORTED, incomplete)


def acl_operations(incomplete: str) -> list[str]:
    """Return the operations of ACLs that begin with the text."""
    from ottla.cli.acl_options import operation_names

    return [name for name in operation_names() if name.startswith(incomplete.lower())]


def users(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the users with SCRAM credentials that begin with the text."""

    async def names(cluster: Cluster) -> list[str]:
        from ottla.client.user_admin import list_users

        return [user.name for user in await list_users(cluster)]

    return _ask(ctx, names, incomplete)


def tokens(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the delegation tokens that begin with the text."""

    async def names(cluster: Cluster) -> list[str]:
        from ottla.client.token_admin import list_tokens

        return [token.token_id for token in await list_tokens(cluster)]

    return _ask(ctx, names, incomplete)


def quota_changes(incomplete: str) -> list[str]:
    """Return `NAME=` for the quotas that begin with the text."""
    return _assignments(quotas(incomplete), incomplete)


def quotas(incomplete: str) -> list[str]:
    """Return the names of the quotas that begin with the text."""
    from ottla.client.quota_admin import IP, USER, quotas_of

    return [name for kind in (USER, IP) for name in quotas_of({kind: None}) if name.startswith(incomplete)]


def _assignments(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(f"{name}=" for name in names if name.startswith(incomplete))


def _ask(ctx: typer.Context, names: Callable[[Cluster], Awaitable[list[str]]], incomplete: str) -> list[str]:
    from ottla.cli.connection import ConnectionOptions, run_on_cluster

    target = ConnectionOptions(ctx.params.get("brokers"), ctx.params.get("profile"), _TIMEOUT_S, may_ask=False)
    try:
        found = run_on_cluster(target, names)
    except CommandFailed:
        return []
    return [name for name in found if name.startswith(incomplete)]
