"""Validates settings and directories for `ottla server --check`: reports whether a start would succeed.

Nothing is created, changed or bound: it may be run while the broker runs, before a restart with other settings. The
logs and the metadata store, which the running broker changes, are not read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.broker import listeners as endpoints
from ottla.broker.config import BrokerConfig
from ottla.broker.listener_tls import ListenersTls
from ottla.broker.startup.cluster_store import store_opener, zookeeper_of
from ottla.broker.startup.open_storage import NoUsableDirectory, check_store_directory, metadata_directory
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.storage.integrity.metadata_backup import MetadataBackup
from ottla.storage.small_files import LOCK, META_PROPERTIES, parse_meta


@dataclass(slots=True)
class StartCheck:
    """Collects what was found. `problems` and `invalid_settings` prevent a start; the rest does not."""

    invalid_settings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def check_directories(self, config: BrokerConfig, paths: Sequence[Path]) -> None:
        """Check the listeners' addresses and the log directories. Raises InvalidSettings."""
        listeners = endpoints.to_listen_at(config.net)
        protocols = endpoints.security_protocols(config.net)
        if any(protocols[listener.listener].uses_tls for listener in listeners):
            ListenersTls(config, SystemClock()).load()
        if endpoints.any_uses_sasl(config.net):
            from ottla.broker.sasl_listeners import SaslListeners

            SaslListeners(config)
        place = metadata_directory(config, paths)
        self.facts |= {
            "listeners": [str(listener) for listener in listeners],
            "node_id": config.server.node_id,
            "data": [str(path) for path in paths],
        }
        identities = {path: self._identity(path) for path in dict.fromkeys((*paths, place)) if self._is_usable(path)}
        self._check_identities(config, {path: fields for path, fields in identities.items() if fields is not None})
        zookeeper = zookeeper_of(config)
        if zookeeper is not None:
            self.facts["zookeeper"] = str(zookeeper)
        try:
            if zookeeper is not None:
                store_opener(config, paths)
            elif not (place / METADATA_FILE).exists():
                known = next((fields["cluster.id"] for fields in identities.values() if fields), None)
                check_store_directory(SystemFiles(), paths, place, known)
        except (NoUsableDirectory, OSError) as error:
            self.problems.append(str(error))

    def _is_usable(self, path: Path) -> bool:
        """Report a directory that cannot be created or written."""
        nearest = next(each for each in (path, *path.parents) if _exists(each))
        if not nearest.is_dir():
            self.problems.append(f"{nearest} is not a directory: give --data a directory")
        elif not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            self.problems.append(f"no permission to write {nearest}: give --data a directory of your own")
        else:
            return nearest == path
        return False

    def _identity(self, path: Path) -> dict[str, str] | None:
        """Read `meta.properties`; None if the directory is new."""
        if directory_in_use([path]) is not None:
            self.warnings.append(f"{path} is in use by a running broker; a second one on it would not start")
        file = path / META_PROPERTIES
        try:
            text = MetadataBackup.read(SystemFiles(), path).text(META_PROPERTIES).text  # of the file, or of its copy
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{file} cannot be read: {error}")
            return None
        if text is None:
            return None
        fields = parse_meta(text)
        if not (fields.get("cluster.id") and (fields.get("node.id") or fields.get("broker.id"))):
            self.problems.append(f"{file} has no cluster.id or no node.id")
            return None
        return fields

    def _check_identities(self, config: BrokerConfig, found: dict[Path, dict[str, str]]) -> None:
        """Report directories of another broker, or of two clusters."""
        clusters = {fields["cluster.id"]: path for path, fields in found.items()}
        if len(clusters) > 1:
            listed = ", ".join(f"{path} to {cluster_id}" for cluster_id, path in clusters.items())
            self.problems.append(f"the directories belong to several clusters: {listed}")
        for path, fields in found.items():
            node_id = fields.get("node.id") or fields["broker.id"]
            if node_id != str(config.server.node_id):
                self.problems.append(f"{path} belongs to node {node_id}, but node.id={config.server.node_id}")
        if clusters:
            self.facts["cluster_id"] = next(iter(clusters))

    def text(self) -> str:
        """Format the result for people."""
        lines = [f"{name.replace('_', ' ')}: {_text(value)}" for name, value in self.facts.items()]
        lines += [f"warning: {each}" for each in self.warnings]
        lines += [f"error: {each}" for each in (*self.invalid_settings, *self.problems)]
        failed = self.invalid_settings or self.problems
        return "\n".join([*lines, "the broker would not start" if failed else "the broker would start"])

    def json(self) -> str:
        """Format the result for programs."""
        errors = [*self.invalid_settings, *self.problems]
        return json.dumps({"valid": not errors, **self.facts, "warnings": self.warnings, "errors": errors}, indent=2)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # such as no permission: the access check reports it


def directory_in_use(paths: Sequence[Path]) -> Path | None:
    """Return the first log directory that a running broker has locked, if there is one."""
    return next((path for path in paths if _is_locked(path / LOCK)), None)


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock; the file is only read."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
