"""Makes the outputs that the settings ask for: of the security audit log, and of the events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.core.events import Event, EventKind, encode
from ottla.core.files import FileSystem
from ottla.core.ids import AUDIT_TOPIC, EVENTS_TOPIC
from ottla.core.runtime import make_executor
from ottla.security.audit_log import AuditLog, AuditOutput, AuditQueue

if TYPE_CHECKING:
    from ottla.broker.services import Services
    from ottla.core.events import EventOutput


def make_audit_log(services: Services, files: FileSystem) -> AuditLog:
    """Return the audit log that the settings ask for."""
    config, clock = services.config.audit, services.clock
    outputs: list[AuditOutput] = []
    if config.path:
        from ottla.security.audit_file import AuditFile

        path = Path(config.path).expanduser().absolute()
        files.make_directory(path.parent)
        outputs.append(
            AuditFile(
                path,
                files=files,
                clock=clock,
                make_executor=make_executor,
                node_id=services.node_id,
                entries_max=config.entries_max,
                bytes_max=config.file_bytes_max,
                files_max=config.files_max,
            )
        )
    if config.topic_enable:
        from ottla.broker.entry_topic import EntryTopic

        queue = AuditQueue(entries_max=config.entries_max)
        outputs.append(EntryTopic(services, AUDIT_TOPIC, queue, "audit log"))
    return AuditLog(outputs, clock=clock, logs_allowed=config.logs_allowed)


def make_event_topic(services: Services) -> EventOutput:
    """Return what writes events to their topic."""
    from ottla.broker.entry_topic import EntryTopic
    from ottla.core.entry_queue import EntryQueue

    dropped = Event(EventKind.DROPPED, "more events than could be written")
    queue = EntryQueue(encode, dropped, entries_max=services.config.events.events_max)
    return EntryTopic(services, EVENTS_TOPIC, queue, "log of events")
