"""Settings of the controller: what a topic gets when its creator does not say."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import Type, setting

_SHORT_MAX = (1 << 15) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Rules for topics."""

    num_partitions: int = setting(
        "num.partitions", default=1, kind=Type.INT, unit="partitions", at_least=1,
        doc="Partitions of a topic created with -1, or created by being asked for.",
    )  # fmt: skip
    default_replication_factor: int = setting(
        "default.replication.factor", default=1, kind=Type.INT, unit="replicas", at_least=1, at_most=_SHORT_MAX,
        doc="Replicas of each partition of such a topic.",
    )  # fmt: skip
    auto_create_topics: bool = setting(
        "auto.create.topics.enable", default=True, kind=Type.BOOLEAN,
        doc="A topic that a client asks for by name and allows to be created comes into being.",
    )  # fmt: skip
    delete_topics: bool = setting(
        "delete.topic.enable", default=True, kind=Type.BOOLEAN, doc="Whether topics may be deleted at all."
    )
