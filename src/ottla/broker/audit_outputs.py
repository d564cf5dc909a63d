"""Makes the security audit log that the settings ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.core.files import FileSystem
from ottla.core.runtime import make_executor
from ottla.security.audit_log import AuditLog, AuditOutput

if TYPE_CHECKING:
    from ottla.broker.services import Services


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
        from ottla.broker.audit_topic import AuditTopic

        outputs.append(AuditTopic(services, entries_max=config.entries_max))
    return AuditLog(outputs, clock=clock, logs_allowed=config.logs_allowed)
