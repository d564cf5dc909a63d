"""Loads of several topics: one that cannot be loaded stops none of the others, and the result names it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.core.clock import SystemClock
from ottla.pipeline.connector.offset_client import NoSuchTopic
from ottla.pipeline.errors import FailureKind
from ottla.pipeline.job_file.job import PipelineJob, read_job
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_table import register_topic
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.table_format import TableFormat, formats_at
from ottla.pipeline.loading.commit_protocol import Tables, create_tables
from ottla.pipeline.produce import ensure_topic
from ottla.pipeline.progress import ProgressReporter
from ottla.pipeline.stages import audit, load
from ottla.pipeline.stages.runner import Context, Run, StageResult
from ottla.pipeline.stages.stream import streams_of
from tests.conftest import Broker
from tests.support.in_process_tasks import InThisProcess

pytestmark = [pytest.mark.slow, pytest.mark.external]


def fill(bootstrap: str, topic: str) -> None:
    ensure_topic(bootstrap, topic, partitions=1, config={})
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(5):
        producer.produce(topic, json.dumps({"n": n}).encode())
    assert producer.flush(30) == 0


def job_of(at: Path, bootstrap: str, loads: str) -> PipelineJob:
    text = f'[brokers]\nbootstrap = "{bootstrap}"\n[lake]\npath = "lake"\n{loads}'
    job, found = read_job(text, directory=at, now_ms=0)
    assert job is not None, found.faults
    return job


def run(at: Path, bootstrap: str, loads: str, stage: Run = load.run) -> StageResult:
    job = job_of(at, bootstrap, loads)
    host: Any = InThisProcess()
    return stage(Context(job, host, ProgressReporter(SystemClock(), quiet=True), SystemClock()))


def rows(result: StageResult) -> dict[str, int]:
    return {document["topic"]: document["rows"] for document in result.data if "rows" in document}


@pytest.fixture
def names(broker: Broker) -> list[str]:
    """Three topics with a common beginning, in the order of their names."""
    name = f"t{uuid.uuid4().hex[:8]}"
    topics = [f"{name}_{letter}" for letter in "abc"]
    for topic in topics:
        fill(broker.bootstrap, topic)
    return topics


def test_topics_after_one_that_was_recreated_are_loaded(tmp_path: Path, broker: Broker, names: list[str]) -> None:
    first, recreated, last = names
    loads = f"[[load]]\npattern = '{first[:-1]}.'\n"
    job = job_of(tmp_path, broker.bootstrap, loads)
    tables: Tables = job.loads[0].tables(recreated)
    create_tables(tables, job.loads[0].mapping)
    register_topic(tables.table, recreated, "another-id")
    result = run(tmp_path, broker.bootstrap, loads)
    assert rows(result) == {first: 5, last: 5}
    assert (result.ok, result.failure) == (False, FailureKind.TOPIC_RECREATED)
    (line,) = [line for line in result.text.splitlines() if "not loaded" in line]
    assert line.startswith(f"{recreated}: not loaded: ")
    (failed,) = [document for document in result.data if "failed" in document]
    assert failed["topic"] == recreated


def test_loads_after_one_of_a_missing_topic_or_pattern_run(tmp_path: Path, broker: Broker, names: list[str]) -> None:
    sections = [f"[[load]]\ntopics = ['absent', '{names[0]}']", "[[load]]\npattern = 'nothing-.*'"]
    sections.append(f"[[load]]\ntopics = ['{names[1]}']\nformat = 'json'")
    result = run(tmp_path, broker.bootstrap, "\n".join(sections))
    assert rows(result) == {names[0]: 5, names[1]: 5}
    assert (result.ok, result.failure) == (False, FailureKind.FAILED)
    failed = [document["topic"] for document in result.data if "failed" in document]
    assert failed == ["absent", "nothing-.*"]

    audited = run(tmp_path, broker.bootstrap, "\n".join(sections), audit.run)
    assert [document["topic"] for document in audited.data if "balanced" in document] == names[:2]
    assert [document["topic"] for document in audited.data if "failed" in document] == ["absent", "nothing-.*"]
    assert not audited.ok


def test_the_first_error_is_raised_if_no_topic_can_be_loaded(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(NoSuchTopic, match="absent-1"):
        run(tmp_path, broker.bootstrap, "[[load]]\ntopics = ['absent-1', 'absent-2']")


def test_each_load_may_have_a_table_format_of_its_own(tmp_path: Path, broker: Broker, names: list[str]) -> None:
    loads = f"[[load]]\ntopics = ['{names[0]}']\n[[load]]\ntopics = ['{names[1]}']\ntable_format = 'iceberg'\n"
    loads += f"[[stream]]\nname = 'sums'\nfrom = '{names[1]}'\nwindow = '1h'\n[stream.values]\nn = 'sum(n)'\n"
    assert rows(run(tmp_path, broker.bootstrap, loads)) == {names[0]: 5, names[1]: 5}
    lake = tmp_path / "lake"
    assert [formats_at(LocalStore(lake / name)) for name in names[:2]] == [{TableFormat.DELTA}, {TableFormat.ICEBERG}]
    assert formats_at(LocalStore(lake / f"{names[1]}_quarantine")) == {TableFormat.ICEBERG}
    job = job_of(tmp_path, broker.bootstrap, loads)
    (stream,) = streams_of(job)
    assert (isinstance(stream.source, IcebergLakeTable), isinstance(stream.results, DeltaLakeTable)) == (True, True)
    assert rows(run(tmp_path, broker.bootstrap, loads)) == {names[0]: 0, names[1]: 0}
