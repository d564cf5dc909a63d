"""Packs what a maintainer needs to know of a cluster into one file: facts, events and findings, but no secret.

Values that brokers mark as sensitive do not come out of them; of others a setting whose name says that it is a secret
is left out here, too, and so is what looks like one in the log.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.transaction_admin import list_transactions
from ottla.core.errors import KafkaError
from ottla.core.events import time_text
from ottla.core.ids import TopicPartition
from ottla.core.settings import is_secret_name
from ottla.diagnosis.diagnose import judge, scope_of
from ottla.diagnosis.facts import GroupFacts
from ottla.diagnosis.gather import gather
from ottla.diagnosis.rule import Subject

LOG_TAIL_BYTES = 4 << 20
HIDDEN = "[hidden]"

_SECRET_IN_TEXT = re.compile(
    r"(?i)((?:password|passwd|secret|token|jaas\.config|authorization)[\w.-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)"
)


async def collect(cluster: Cluster, *, versions: Mapping[str, str], token: str = "") -> dict[str, str]:
    """Return the texts of the bundle by their names in it."""
    facts = await gather(cluster, scope_of(Subject.CLUSTER, ""), token=token)
    try:
        transactions: object = await list_transactions(cluster)
    except KafkaError as error:
        transactions = error.message
    findings = [finding._asdict() for finding in judge(facts, Subject.CLUSTER)]
    content: dict[str, object] = {
        "versions.json": {"taken": time_text(facts.now_ms), **versions, "brokers": facts.versions},
        "health.json": facts.health,
        "findings.json": findings,
        "log-dirs.json": facts.health.log_dirs,
        "topics.json": {
            name: {**_values(topic), "config": without_secrets(topic.config)} for name, topic in facts.topics.items()
        },
        "groups.json": {name: _group(group) for name, group in facts.groups.items()},
        "transactions.json": transactions,
        "quotas.json": facts.quotas,
        "events.json": facts.events,
        "unread.json": facts.unread,
    }
    for node, config in facts.broker_configs.items():
        content[f"settings/broker-{node}.json"] = without_secrets(config)
    hidden = {  # racks from a config provider: brokers do not show them as a setting
        node.rack
        for node in facts.described.nodes
        if node.rack and not facts.broker_configs.get(node.node_id, {}).get("broker.rack")
    }
    return {name: _text(value, hidden) for name, value in content.items()}


def _text(value: object, hidden: Collection[str]) -> str:
    text = json.dumps(_plain(value), indent=1, ensure_ascii=False)
    for secret in hidden:
        text = text.replace(json.dumps(secret, ensure_ascii=False), f'"{HIDDEN}"')
    return text


def _values(topic: Any) -> dict[str, Any]:
    return {field: getattr(topic, field) for field in topic.__dataclass_fields__}


def _group(group: GroupFacts) -> dict[str, object]:
    lag = group.lag
    return {
        "group": lag.group,
        "committed": lag.committed,
        "lag": {tp: lag.lag_of(tp) for tp in lag.partitions},
        "seconds": group.ages_s,
        "unknown": lag.unknown,
    }


def without_secrets(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings without the values of those whose name says that they are secret.

    >>> without_secrets({"ssl.key.password": "x", "log.dirs": "/data"})
    {'ssl.key.password': '[hidden]', 'log.dirs': '/data'}
    """
    return {key: HIDDEN if value and is_secret_name(key) else scrub(value) for key, value in config.items()}


def scrub(text: str) -> str:
    """Hide what looks like a secret in a text.

    >>> scrub("sasl.password=abc rest")
    'sasl.password=[hidden] rest'
    """
    return _SECRET_IN_TEXT.sub(rf"\g<1>{HIDDEN}", text)


def log_tail(path: Path) -> str:
    """Return the end of a log file, without what looks like a secret. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return scrub(file.read().decode("utf-8", errors="replace"))


def pack(path: Path, texts: Mapping[str, str], *, now_ms: int) -> None:
    """Write the texts as a gzipped tar file that its owner alone may read. Raises OSError, also if it exists."""
    with path.open("xb") as file:
        path.chmod(0o600)
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in texts.items():
                data = text.encode()
                member = tarfile.TarInfo(f"{path.name.split('.')[0]}/{name}")
                member.size, member.mtime, member.mode = len(data), now_ms // 1000, 0o600
                archive.addfile(member, io.BytesIO(data))


def _plain(value: Any) -> Any:
    """Convert what JSON does not have."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({field: getattr(value, field) for field in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
