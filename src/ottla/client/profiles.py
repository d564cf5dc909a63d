"""Reads and writes the named clusters in `~/.config/ottla/profiles.toml` (see OTTLA_PROFILES, XDG_CONFIG_HOME).

current = "local"

[profiles.local]
brokers = "127.0.0.1:9092"
password_command = "pass show kafka/local"

[profiles.local.settings]
"security.protocol" = "SASL_SSL"

The file is readable by its owner only: settings may contain passwords. What a profile names is read when a connection
needs it (`client_settings`). The command line, the pipeline, `format("ottla")` and mirrors connect by profiles.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.client.password_source import PasswordKind, PasswordNotRead, PasswordSource, read_password

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_PASSWORD, _USERNAME = "sasl.password", "sasl.username"  # names of settings
NOT_READ = "[not read]"
"""The password where it is not needed, as in a check of settings."""


class InvalidProfile(ValueError):
    """A file or a profile that cannot be used."""


class NoSuchProfile(LookupError):
    """A profile that is not in the file."""


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """The content of a profile."""

    brokers: str
    settings: dict[str, str] = field(default_factory=dict)  # of the client, under Kafka's names
    password: PasswordSource | None = None

    def client_settings(
        self, environment: Mapping[str, str], *, name: str, reads_password: bool = True
    ) -> dict[str, str]:
        """Return the settings with environment variables and the password in them. Raises InvalidProfile."""
        settings = expand_variables(self.settings, environment, profile=name)
        if self.password is None:
            return settings
        if not reads_password:
            return {**settings, _PASSWORD: NOT_READ}
        try:
            return {**settings, _PASSWORD: read_password(self.password, username=settings.get(_USERNAME))}
        except PasswordNotRead as error:
            raise InvalidProfile(f"profile {name}: {error}") from None


@dataclass(slots=True)
class Profiles:
    """The content of the file; `save` writes it back."""

    path: Path
    current: str | None = None
    clusters: dict[str, NamedCluster] = field(default_factory=dict)

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Profiles:
        """Read the file; a missing one is empty. Raises InvalidProfile if it cannot be read."""
        path = path_of(environment)
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidProfile(f"{path} cannot be read: {error}") from None
        tables = document.get("profiles", {})
        clusters = {}
        for name, table in (tables if isinstance(tables, dict) else {}).items():
            try:
                clusters[name] = _cluster_of(name, table)
            except InvalidProfile as error:
                raise InvalidProfile(f"{path}: {error}") from None
        current = document.get("current")
        return cls(path, current if isinstance(current, str) else None, clusters)

    def cluster(self, name: str) -> NamedCluster:
        """Return a profile. Raises NoSuchProfile."""
        if name not in self.clusters:
            raise NoSuchProfile(f"there is no profile {name!r} in {self.path}")
        return self.clusters[name]

    def save(self) -> None:
        """Write a new file, then replace the old one atomically. Raises InvalidProfile if it cannot be written."""
        lines = [f"current = {_quoted(self.current)}", ""] if self.current is not None else []
        for name, cluster in sorted(self.clusters.items()):
            lines += [f"[profiles.{name}]", f"brokers = {_quoted(cluster.brokers)}"]
            if cluster.password is not None:
                lines.append(f"{cluster.password.kind.key} = {_quoted(cluster.password.text)}")
            lines.append("")
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
            raise InvalidProfile(f"{self.path} cannot be written: {error.strerror}") from None


def expand_variables(settings: Mapping[str, str], environment: Mapping[str, str], *, profile: str) -> dict[str, str]:
    """Replace `${env:NAME}` by environment variables, as Kafka does. Raises InvalidProfile if one is not set.

    >>> expand_variables({"sasl.password": "${env:SECRET}"}, {"SECRET": "x"}, profile="p")
    {'sasl.password': 'x'}
    """
    expanded = {}
    for name, value in settings.items():
        for variable in _VARIABLE.findall(value):
            if variable not in environment:
                raise InvalidProfile(
                    f"profile {profile}: {name} needs the environment variable {variable}, which is not set"
                )
        expanded[name] = _VARIABLE.sub(lambda match: environment[match[1]], value)
    return expanded


def path_of(environment: Mapping[str, str]) -> Path:
    """Return the path of the file with the profiles."""
    if environment.get("OTTLA_PROFILES"):
        return Path(environment["OTTLA_PROFILES"])
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    return Path(base) / "ottla" / "profiles.toml"


def is_profile_name(text: str) -> bool:
    """Return whether a text is a valid name of a profile: it is part of the name of a TOML table."""
    return _NAME.fullmatch(text) is not None


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of a setting must not be printed; a reference to an environment variable may be."""
    is_password = "password" in name or name in {"sasl.jaas.config", "ssl.keystore.key"}
    is_password = is_password or (name == "schema.registry.url" and "@" in value)
    return is_password and not value.startswith("${env:")


def _cluster_of(name: str, table: Any) -> NamedCluster:
    brokers = table.get("brokers") if isinstance(table, dict) else None
    if not isinstance(brokers, str):
        raise InvalidProfile(f'profile {name} needs a line brokers = "host:port"')
    settings = table.get("settings", {})
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise InvalidProfile(f'the settings of profile {name} must be lines "name" = "value"')
    sources = [PasswordSource(kind, table[kind.key]) for kind in PasswordKind if kind.key in table]
    if len(sources) > 1 or (sources and _PASSWORD in settings):
        raise InvalidProfile(f"profile {name} has more than one password")
    if sources and not (isinstance(sources[0].text, str) and sources[0].text):
        raise InvalidProfile(f"{sources[0].kind.key} of profile {name} must be a text")
    return NamedCluster(brokers, settings, sources[0] if sources else None)


def _quoted(text: str) -> str:
    """Encode a TOML basic string: as JSON, but without escaped surrogate pairs and with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
