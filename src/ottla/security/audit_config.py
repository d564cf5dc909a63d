"""Declares the settings of the security audit log."""

from __future__ import annotations

from ottla.core.settings import DAY_MS, MIB, Section, Type, setting


class AuditConfig(Section):
    """Holds where entries go, and their limits. None may be changed by a request: who is watched must not decide."""

    path: str = setting(
        "ottla.audit.log.path", default="", kind=Type.STRING,
        doc="File of the security audit log: who signed in, what was refused, and every administrative change, as "
        "lines of JSON (docs/audit-log.md). Empty means none.",
    )  # fmt: skip
    file_bytes_max: int = setting(
        "ottla.audit.log.max.bytes", default=64 * MIB, kind=Type.LONG, unit="bytes", at_least=1 << 16,
        doc="Size at which the file of the audit log is renamed to FILE.1, FILE.1 to FILE.2, and so on.",
    )  # fmt: skip
    files_max: int = setting(
        "ottla.audit.log.max.files", default=8, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of files of the audit log that are kept, the current one included.",
    )  # fmt: skip
    topic_enable: bool = setting(
        "ottla.audit.topic.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether the security audit log is written to the topic `__ottla_audit` too. Clients cannot write to it.",
    )  # fmt: skip
    topic_partitions: int = setting(
        "ottla.audit.topic.num.partitions", default=12, kind=Type.INT, at_least=1,
        doc="Number of partitions of `__ottla_audit`. Each broker writes to one that it leads: there should be several "
        "for each broker.",
    )  # fmt: skip
    topic_replication_factor: int = setting(
        "ottla.audit.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Number of replicas of `__ottla_audit`. A broker alone has one.",
    )  # fmt: skip
    topic_retention_ms: int = setting(
        "ottla.audit.topic.retention.ms", default=7 * DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="How long entries stay in `__ottla_audit`, as it is created; -1 is for ever.",
    )  # fmt: skip
    logs_allowed: bool = setting(
        "ottla.audit.allowed.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether operations that were allowed are in the audit log too: an entry for each resource of each "
        "request.",
    )  # fmt: skip
    entries_max: int = setting(
        "ottla.audit.queue.max.entries", default=10_000, kind=Type.INT, at_least=100, at_most=1_000_000,
        doc="Number of entries that wait to be written, for each output. More are dropped, and their number is "
        "written.",
    )  # fmt: skip
