"""Lists and recognizes the settings of a broker of Apache Kafka 4.4 that Ottla does not have.

Security that would be missing prevents a start: the operator's file asks for it, and there would be none. Settings of a
KRaft quorum have no effect. A change of any of them at run time is refused: a setting that is stored and means nothing
would look as if it were in use. The start imports this only if there are unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.core.settings import SettingProblem, SettingText

NOT_HERE: Final = frozenset(
    {
        "add.partitions.to.txn.retry.backoff.ms", "alter.config.policy.class.name",
        "alter.log.dirs.replication.quota.window.num", "alter.log.dirs.replication.quota.window.size.seconds",
        "background.threads", "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms", "client.quota.callback.class", "config.providers",
        "controller.performance.always.log.threshold.ms", "controller.performance.sample.period.ms",
        "controller.quorum.append.linger.ms", "controller.quorum.auto.join.enable",
        "controller.quorum.bootstrap.servers", "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms", "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes", "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms", "controller.quorum.retry.backoff.ms",
        "controller.quorum.voters",
        "controller.socket.timeout.ms", "create.topic.policy.class.name",
        "delete.records.purgatory.purge.interval.requests", "early.start.listeners",
        "fetch.purgatory.purge.interval.requests", "follower.fetch.last.tiered.offset.enable",
        "group.consumer.assignor.offload.enable", "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads", "group.coordinator.cached.buffer.max.bytes",
        "group.coordinator.rebalance.protocols", "group.coordinator.threads",
        "group.share.assignor.offload.enable", "group.share.assignors", "group.share.dlq.manager.class.name",
        "group.share.initialize.retry.interval.ms", "group.share.persister.class.name",
        "group.streams.acceptable.recovery.lag", "group.streams.assignment.interval.ms",
        "group.streams.assignor.offload.enable", "group.streams.assignors",
        "group.streams.heartbeat.interval.ms", "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.assignment.interval.ms", "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.session.timeout.ms", "group.streams.max.size", "group.streams.max.standby.replicas",
        "group.streams.max.warmup.replicas", "group.streams.min.assignment.interval.ms",
        "group.streams.min.heartbeat.interval.ms", "group.streams.min.session.timeout.ms",
        "group.streams.min.task.offset.interval.ms", "group.streams.num.standby.replicas",
        "group.streams.num.warmup.replicas", "group.streams.rack.aware.assignment.tags",
        "group.streams.session.timeout.ms", "group.streams.task.offset.interval.ms",
        "group.streams.topology.description.plugin.class", "initial.broker.registration.timeout.ms",
        "internal.metadata.delete.delay.millis", "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes", "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters", "log.dir.failure.timeout.ms",
        "max.request.partition.size.limit",
        "metadata.log.max.record.bytes.between.snapshots", "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes", "metadata.log.segment.ms", "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes", "metadata.max.retention.ms", "metric.reporters", "metrics.num.samples",
        "metrics.recording.level", "metrics.sample.window.ms", "num.io.threads", "num.network.threads",
        "num.replica.alter.log.dirs.threads", "offsets.load.buffer.size", "offsets.topic.compression.codec",
        "principal.builder.class", "process.roles", "producer.purgatory.purge.interval.requests",
        "queued.max.requests", "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms", "remote.log.index.file.cache.total.size.bytes",
        "remote.log.index.file.cache.ttl.ms", "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second", "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds", "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second", "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds", "remote.log.manager.follower.thread.pool.size",
        "remote.log.manager.task.interval.ms", "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms", "remote.log.manager.task.retry.jitter",
        "remote.log.manager.thread.pool.size", "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name", "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix", "remote.log.metadata.manager.listener.name",
        "remote.log.reader.max.pending.tasks", "remote.log.reader.threads",
        "remote.log.storage.manager.class.name", "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix", "remote.log.storage.system.enable",
        "replica.high.watermark.checkpoint.interval.ms", "replica.socket.receive.buffer.bytes",
        "replication.quota.window.num", "replication.quota.window.size.seconds",
        "sasl.client.callback.handler.class",
        "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules", "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.callback.handler.class", "sasl.login.class", "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms", "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter", "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
        "sasl.mechanism.controller.protocol",
        "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include", "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub", "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url", "sasl.server.callback.handler.class",
        "security.providers",
        "server.max.startup.time.ms", "share.coordinator.append.linger.ms",
        "share.coordinator.cached.buffer.max.bytes", "share.coordinator.load.buffer.size",
        "share.coordinator.state.topic.compression.codec", "share.coordinator.threads",
        "share.fetch.purgatory.purge.interval.requests", "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms", "ssl.allow.dn.changes", "ssl.allow.san.changes",
        "ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.provider",
        "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
        "transaction.partition.verification.enable",
        "transaction.state.log.load.buffer.size", "transaction.two.phase.commit.enable",
        "unclean.leader.election.interval.ms", "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    }
)  # fmt: skip

_OFF: Final = frozenset({"", "false", "none", "plaintext"})
"""Values of security settings with which Kafka has no such security either."""

_SECURITY: Final = (
    (
        re.compile(r"(.*\.)?sasl\.kerberos\..*"),
        "Ottla has no Kerberos: clients sign in with SCRAM, PLAIN, OAUTHBEARER or a certificate",
    ),
    (
        re.compile(r"(.*\.)?sasl\..*(\.class|\.handler)"),
        "it names a class of Java. Tokens are checked by sasl.oauthbearer.*, passwords by SCRAM credentials",
    ),
    (re.compile(r"(.*\.)?sasl\..*"), "Ottla has no such setting of SASL"),
    (
        re.compile(
            r"(.*\.)?ssl\.(provider|(key|trust)manager\.algorithm|secure\.random\.implementation|engine\.factory\.class)"
            r"|security\.providers"
        ),
        "it names a part of Java's TLS; Ottla's is OpenSSL",
    ),
    (re.compile(r"(.*\.)?ssl\..*"), "Ottla has no such setting of TLS"),
    (
        re.compile(r"(.*\.)?principal\.builder\.class"),
        "it names a class of Java. A principal is the user of SASL, or comes of ssl.principal.mapping.rules",
    ),
)

_KRAFT: Final = re.compile(
    r"process\.roles|controller\.(quorum|performance|socket)\..*|metadata\.(log|max)\..*|early\.start\.listeners"
    r"|broker\.(heartbeat\.interval|session\.timeout)\.ms|initial\.broker\.registration\.timeout\.ms"
    r"|sasl\.mechanism\.controller\.protocol|zookeeper\.metadata\.migration\.enable|server\.max\.startup\.time\.ms"
    r"|unstable\.(api|feature)\.versions\.enable"
)

_PREFIX: Final = "OTTLA_"


def missing_security(given: Mapping[str, SettingText]) -> list[SettingProblem]:
    """Return a problem for each setting that asks for security that Ottla does not have."""
    problems: list[SettingProblem] = []
    for key, value in given.items():
        why = _security_of(key)
        if why and value.text.strip().lower() not in _OFF:
            problems.append(
                SettingProblem(key, value.shown, f"{why}. Leave the setting out to go without it", value.origin)
            )
    return problems


def _security_of(key: str) -> str:
    """Return what is missing; empty if the setting asks for no security."""
    return "" if is_of_kraft(key) else next((why for names, why in _SECURITY if names.fullmatch(key)), "")


def is_security(key: str) -> bool:
    """Return whether a setting of Kafka's asks for security.

    >>> is_security("listener.name.outside.ssl.engine.factory.class"), is_security("log.dirs")
    (True, False)
    """
    return bool(_security_of(key))


def is_of_kraft(key: str) -> bool:
    """Return whether Kafka has the setting for its KRaft quorum only."""
    return _KRAFT.fullmatch(key) is not None


def security_in(environment: Mapping[str, str]) -> dict[str, SettingText]:
    """Return the security settings among the environment variables, which may set what a file may.

    >>> security_in({"OTTLA_SSL_PROVIDER": "SunJSSE", "OTTLA_LOG_LEVEL": "INFO"})
    {'ssl.provider': SettingText(text='SunJSSE', origin='environment variable OTTLA_SSL_PROVIDER')}
    """
    settings = {}
    for name, text in environment.items():
        key = name.removeprefix(_PREFIX).lower().replace("_", ".")
        if name.startswith(_PREFIX) and is_security(key):
            settings[key] = SettingText(text, f"environment variable {name}")
    return settings
