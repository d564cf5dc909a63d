"""What only the brokers can say about a job: whether they answer, and have what it loads."""

from __future__ import annotations

import contextlib

from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.pipeline.connector.offset_client import Asker, NoSuchTopicError
from ottla.pipeline.connector.subscription import Subscription
from ottla.pipeline.job_file.job import Job
from ottla.pipeline.job_file.reader import Read
from ottla.pipeline.loading.load import topics_meant
from ottla.pipeline.log import LoadError


def check_online(job: Job, found: Read) -> None:
    """Ask, and note what is wrong at its line."""
    asker = Asker(job.brokers.reading)
    with contextlib.closing(asker):
        try:
            asker.topics(Subscription(pattern="no-topic-is-called-this"))
        except (CannotConnect, KafkaError) as error:
            found.blame(("brokers", "bootstrap"), str(error))
            return
        for n, spec in enumerate(job.loads):
            key = "pattern" if spec.pattern is not None else "topics"
            try:
                topics = topics_meant(spec, asker)
                if spec.pattern is None:
                    asker.topics(Subscription(topics=tuple(topics)))
            except (NoSuchTopicError, LoadError, KafkaError) as error:
                found.blame(("load", n, key), str(error))
    for n, load in enumerate(job.sections["load"]):
        if (url := load["avro"]["registry"]) and (fault := _registry_fault(url)):
            found.blame(("load", n, "avro", "registry"), fault)


def _registry_fault(url: str) -> str | None:
    from ottla.pipeline.formats.registry import RegistryError, SchemaRegistry

    try:
        SchemaRegistry(url).check()
    except RegistryError as error:
        return str(error)
    return None
