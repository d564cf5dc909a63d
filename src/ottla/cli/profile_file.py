"""Reads and writes the named clusters in `~/.config/ottla/profiles.toml` (see OTTLA_PROFILES, XDG_CONFIG_HOME).

current = "local"

[profiles.local]
brokers = "127.0.0.1:9092"

[profiles.local.settings]
"security.protocol" = "SASL_SSL"

The file is readable by its owner only: settings may contain passwords.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ottla.cli.errors import CommandFailed, ExitCode

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """The content of a profile."""

    brokers: str
    settings: dict[str, str] = field(default_factory=dict)  # of the client, under Kafka's names


@dataclass(slots=True)
class Profiles:
    """The content of the file; `save` writes it back."""

    path: Path
    current: str | None = None
    clusters: dict[str, NamedCluster] = field(default_factory=dict)

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Profiles:
        """Read the file; a missing one is empty. Raises `CommandFailed` if it cannot be read."""
        path = path_of(environment)
        try:
            found = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CommandFailed(f"{path} cannot be read: {error}", code=ExitCode.BAD_INPUT) from None
        clusters = {}
        tables = found.get("profiles", {})
        for name, table in (tables if isinstance(tables, dict) else {}).items():
            brokers = table.get("brokers") if isinstance(table, dict) else None
            if not isinstance(brokers, str):
                raise CommandFailed(
                    f'{path}: profile {name} needs a line brokers = "host:port"', code=ExitCode.BAD_INPUT
                )
            settings = table.get("settings", {})
            if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
                raise CommandFailed(
                    f'{path}: the settings of profile {name} must be lines "name" = "value"', code=ExitCode.BAD_INPUT
                )
            clusters[name] = NamedCluster(brokers, settings)
        current = found.get("current")
        return cls(path, current if isinstance(current, str) else None, clusters)

    def save(self) -> None:
        """Write a new file, then replace the old one atomically."""
        lines = [f"current = {_quoted(self.current)}", ""] if self.current is not None else []
        for name, cluster in sorted(self.clusters.items()):
            lines += [f"[profiles.{name}]", f"brokers = {_quoted(cluster.brokers)}", ""]
            if cluster.settings:
                lines.append(f"[profiles.{name}.settings]")
                lines += [f"{_quoted(key)} = {_quoted(value)}" for key, value in sorted(cluster.settings.items())]
                lines.append("")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            fresh.touch(mode=0o600)
            fresh.write_text("\n".join(lines), "utf-8")
            fresh.replace(self.path)
        except OSError as error:
            raise CommandFailed(f"{self.path} cannot be written: {error.strerror}") from None


def path_of(environment: Mapping[str, str]) -> Path:
    """Return the path of the file with the profiles."""
    if environment.get("OTTLA_PROFILES"):
        return Path(environment["OTTLA_PROFILES"])
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    return Path(base) / "ottla" / "profiles.toml"


def is_profile_name(text: str) -> bool:
    """Return whether a text is a valid name of a profile: it is part of the name of a TOML table."""
    return _NAME.fullmatch(text) is not None


def _quoted(text: str) -> str:
    """Encode a TOML basic string: as JSON, but without escaped surrogate pairs and with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
