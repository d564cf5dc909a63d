"""Checks a job with the brokers: whether they answer, and have the topics that it loads."""

from __future__ import annotations

import contextlib

from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.pipeline.connector.offset_client import NoSuchTopic, OffsetClient
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.job_file.reader import ReadResult
from ottla.pipeline.loading.load import resolve_topics
from ottla.pipeline.loading.plan import CannotLoad


def check_online(job: PipelineJob, found: ReadResult) -> None:
    """Ask, and note what is wrong at its line."""
    offset_client = OffsetClient(job.brokers.read_options)
    with contextlib.closing(offset_client):
        try:
            offset_client.topics(TopicSubscription(pattern="no-topic-is-called-this"))
        except (CannotConnect, KafkaError) as error:
            found.add_problem(("brokers", "bootstrap"), str(error))
            return
        for n, spec in enumerate(job.loads):
            key = "pattern" if spec.pattern is not None else "topics"
            try:
                topics = resolve_topics(spec, offset_client)
                if spec.pattern is None:
                    offset_client.topics(TopicSubscription(topics=tuple(topics)))
            except (NoSuchTopic, CannotLoad, KafkaError) as error:
                found.add_problem(("load", n, key), str(error))
    for n, load in enumerate(job.sections["load"]):
        for name in ("avro", "protobuf", "json"):
            if (url := load[name]["registry"]) and (fault := _registry_fault(url)):
                found.add_problem(("load", n, name, "registry"), fault)


def _registry_fault(url: str) -> str | None:
    from ottla.pipeline.formats.registry import RegistryFailed, SchemaRegistry

    try:
        SchemaRegistry(url).check()
    except RegistryFailed as error:
        return str(error)
    return None
