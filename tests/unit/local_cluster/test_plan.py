"""Which brokers `ottla up` runs, and with which settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.broker import config
from ottla.local_cluster.cluster import CannotRun, ClusterPlan, broker_settings, make_plan


def test_a_directory_keeps_its_plan_and_may_grow(tmp_path: Path) -> None:
    assert make_plan(tmp_path, brokers=None, port=None) == ClusterPlan(3, 9092)
    (tmp_path / "cluster.json").write_text(json.dumps({"version": 1, "brokers": 3, "port": 7000}))
    assert make_plan(tmp_path, brokers=None, port=None) == ClusterPlan(3, 7000)
    assert make_plan(tmp_path, brokers=5, port=8000) == ClusterPlan(5, 8000)
    with pytest.raises(CannotRun, match="has 3 brokers"):
        make_plan(tmp_path, brokers=2, port=None)
    with pytest.raises(CannotRun, match="above 65535: give a lower --port"):
        make_plan(tmp_path, brokers=None, port=65534)
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(CannotRun, match="cannot be read"):
        make_plan(tmp_path, brokers=None, port=None)


@pytest.mark.parametrize(("brokers", "factor", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_the_settings_of_a_broker_exist_and_fit_the_number_of_brokers(brokers: int, factor: int, min_isr: int) -> None:
    plan = ClusterPlan(brokers, 9092)
    given, warnings = config.read(file=None, environment={}, options=broker_settings(plan, brokers, "127.0.0.1:2181"))
    assert warnings == []
    assert (given.server.node_id, given.zookeeper.connect) == (brokers, "127.0.0.1:2181/ottla")
    assert given.controller.default_replication_factor == factor
    assert given.groups.offsets_topic_replication_factor == factor
    assert given.log.min_insync_replicas == min_isr
    assert plan.bootstrap.count(",") == brokers - 1
