"""Applies the table of rules to the facts of a cluster: of one topic, group, client or broker, or of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.diagnosis.cluster_rules import BROKER_RULES, CLIENT_RULES
from ottla.diagnosis.facts import Facts
from ottla.diagnosis.gather import Scope, gather
from ottla.diagnosis.group_rules import GROUP_RULES
from ottla.diagnosis.rule import Finding, Rule, Subject
from ottla.diagnosis.topic_rules import TOPIC_RULES

RULES: tuple[Rule, ...] = (*BROKER_RULES, *TOPIC_RULES, *GROUP_RULES, *CLIENT_RULES)
"""All rules, in the order of their weight within a subject."""

NOTES = frozenset({"idle", "too few replicas", "small batches", "leaders moved", "more members than partitions"})
"""Rules of what is not a fault by itself: `ottla doctor` shows them last."""


class Diagnosis(NamedTuple):
    """The findings, the weightiest first, and the facts that could not be read."""

    findings: list[Finding]
    unread: dict[str, str]
    has_events: bool


async def diagnose(
    cluster: Cluster, subject: Subject, name: str = "", *, token: str = "", now_ms: int | None = None
) -> Diagnosis:
    """Find out why something is not well; without a name all of the cluster. Raises CannotConnect."""
    facts = await gather(cluster, scope_of(subject, name), token=token, now_ms=now_ms)
    return Diagnosis(list(judge(facts, subject, name)), facts.unread, facts.events is not None)


def scope_of(subject: Subject, name: str) -> Scope:
    """Return what has to be looked at."""
    match subject:
        case Subject.GROUP:
            return Scope(topics=(), groups=(name,))
        case Subject.TOPIC:
            return Scope(topics=(name,), groups=(), samples=True)
        case Subject.CLIENT:
            return Scope(topics=())
        case Subject.BROKER:
            return Scope(topics=(), groups=())
        case _:
            return Scope(samples=True)


def judge(facts: Facts, subject: Subject, name: str = "") -> Iterator[Finding]:
    """Apply the rules about a subject, or those of all subjects."""
    if subject is not Subject.CLUSTER:
        yield from _about(facts, subject, name)
        return
    yield from _about(facts, Subject.BROKER, "")
    of_parts = [finding for topic in sorted(facts.topics) for finding in _about(facts, Subject.TOPIC, topic)]
    of_parts += [finding for group in sorted(facts.groups) for finding in _about(facts, Subject.GROUP, group)]
    clients = sorted({event.client for event in facts.events or () if event.client and _is_of_client(event.kind)})
    for client in clients:
        of_parts += [finding for finding in _about(facts, Subject.CLIENT, client) if finding.rule != "requests refused"]
    yield from (finding for finding in of_parts if finding.rule not in NOTES)
    yield from (finding for finding in of_parts if finding.rule in NOTES)


def _is_of_client(kind: str) -> bool:
    return kind in {"throttled-request", "refused-request", "slow-request"}


def _about(facts: Facts, subject: Subject, name: str) -> Iterator[Finding]:
    for rule in RULES:
        if rule.subject is subject:
            for reason in rule.check(facts, name):
                yield Finding(rule.name, subject, name, *reason)
