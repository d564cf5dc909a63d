"""Declares the settings of the controller, the defaults of new topics among them."""

from __future__ import annotations

from ottla.core.settings import Section, Type, setting

_SHORT_MAX = (1 << 15) - 1


class ControllerConfig(Section):
    """Holds the settings for the creation and deletion of topics."""

    num_partitions: int = setting(
        "num.partitions", default=1, kind=Type.INT, unit="partitions", at_least=1,
        doc="Partitions of a topic created with -1 partitions or automatically.",
    )  # fmt: skip
    default_replication_factor: int = setting(
        "default.replication.factor", default=1, kind=Type.INT, unit="replicas", at_least=1, at_most=_SHORT_MAX,
        doc="Replicas of each partition of such a topic.",
    )  # fmt: skip
    auto_create_topics: bool = setting(
        "auto.create.topics.enable", default=True, kind=Type.BOOLEAN,
        doc="Whether a missing topic is created when a client requests its metadata and allows it.",
    )  # fmt: skip
    delete_topics: bool = setting(
        "delete.topic.enable", default=True, kind=Type.BOOLEAN, doc="Whether topics may be deleted."
    )
    auto_leader_rebalance: bool = setting(
        "auto.leader.rebalance.enable", default=True, kind=Type.BOOLEAN,
        doc="Whether the controller lets preferred replicas lead again from time to time.",
    )  # fmt: skip
    leader_imbalance_check_s: int = setting(
        "leader.imbalance.check.interval.seconds", default=300, kind=Type.LONG, unit="s", at_least=1,
        doc="Pause between two such checks.",
    )  # fmt: skip
    leader_imbalance_percentage: int = setting(
        "leader.imbalance.per.broker.percentage", default=10, kind=Type.INT, unit="%", at_least=0,
        doc="Leaders move back to a broker when others lead more than this share of the partitions whose preferred "
        "leader it is.",
    )  # fmt: skip
