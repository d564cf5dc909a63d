"""Decodes the keys and values of records by a schema registry, before they are selected and printed."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from ottla.cli.errors import CommandFailed, ExitCode, usage_error
from ottla.cli.pipeline_libraries import needs_pipeline_libraries
from ottla.records.record_reader import Record

Decode = Callable[[Record], Record]


def decoder(url: str) -> Decode:
    """Return the function that decodes a record by the registry at a URL. Raises `CommandFailed`, later too."""
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        raise usage_error(f"--registry {url}: write a URL like http://registry:8081")
    with needs_pipeline_libraries("--registry"):
        from ottla.pipeline.formats.registered_json import RegisteredJson
        from ottla.pipeline.formats.registry import RegistryFailed
    registered = RegisteredJson(url)

    def decode(record: Record) -> Record:
        try:
            return record._replace(key=registered.to_text(record.key), value=registered.to_text(record.value))
        except RegistryFailed as error:
            raise CommandFailed(str(error), code=ExitCode.FAILED, advice="check --registry") from error

    return decode
