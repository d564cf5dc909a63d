"""Decides single events as the controller does."""

from __future__ import annotations

from typing import NamedTuple

from ottla.controller.machine import Event, apply
from ottla.controller.overlay import Overlay, Rules
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.store import Op


class Decision(NamedTuple):
    """Holds what to write, and the resulting snapshot."""

    ops: list[Op]
    view: ClusterView


def decide(view: ClusterView, event: Event, rules: Rules) -> Decision:
    """Decide one event alone. Raises the `KafkaError` for the client."""
    overlay = Overlay(view, rules)
    apply(overlay, event)
    return Decision(overlay.ops(), overlay.view())
