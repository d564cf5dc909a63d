"""Takes values of settings from files and environment variables, as Kafka's config providers do (KIP-297).

    ssl.keystore.password = ${file:/etc/ottla/secrets.properties:keystore}
    ssl.key.password = ${env:KEY_PASSWORD}
    sasl.jaas.config = ${directory:/run/secrets:jaas}

Only the broker's own file and its command line have such values expanded, at the start. What comes from a request, from
the metadata store or from an environment variable is never expanded (CVE-2024-31141), and the result of an expansion is
not expanded again. A value that came from a provider is a secret, whatever its setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ottla.core.settings import SettingProblem, SettingText, read_properties

NAMES: Final = "config.providers"
"""The setting that names providers. Without it there are `file`, `env` and `directory`."""

_PACKAGE: Final = "org.apache.kafka.common.config.provider."
CLASSES: Final = {
    _PACKAGE + "FileConfigProvider": "file",
    _PACKAGE + "EnvVarConfigProvider": "env",
    _PACKAGE + "DirectoryConfigProvider": "directory",
}
_BUILT_IN: Final = tuple(CLASSES.values())
_ALLOWED_PATHS: Final = "allowed.paths"
_ALLOW_LIST: Final = "allowlist.pattern"
_VARIABLE: Final = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")

FILE_BYTES_MAX: Final = 1 << 20


class _NotProvided(Exception):
    """Reports why a variable has no value."""


class ConfigProviders:
    """The providers that the settings name, by name."""

    def __init__(self, given: Mapping[str, SettingText], environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._parameters: dict[str, dict[str, str]] = {}
        self._providers: dict[str, Callable[[str, str, dict[str, str]], str]] = {}
        self.problems: list[SettingProblem] = []
        self._files: dict[Path, Mapping[str, SettingText]] = {}
        kinds = {"file": self._of_file, "env": self._of_environment, "directory": self._of_directory}
        names = [name.strip() for name in given[NAMES].text.split(",") if name.strip()] if NAMES in given else []
        for name in names or _BUILT_IN:
            kind = name if not names else self._kind(name, given)
            if kind:
                prefix = f"{NAMES}.{name}.param."
                self._parameters[name] = {
                    key.removeprefix(prefix): value.text for key, value in given.items() if key.startswith(prefix)
                }
                self._providers[name] = kinds[kind]

    def _kind(self, name: str, given: Mapping[str, SettingText]) -> str:
        key = f"{NAMES}.{name}.class"
        value = given.get(key)
        if value is None:
            origin = given[NAMES].origin
            self.problems.append(SettingProblem(NAMES, given[NAMES].text, f"{key} is missing", origin))
            return ""
        kind = CLASSES.get(value.text.strip(), "")
        if not kind:
            why = f"must be one of {', '.join(CLASSES)}: Ottla loads no classes"
            self.problems.append(SettingProblem(key, value.text, why, value.origin))
        return kind

    def expand(self, key: str, value: SettingText) -> SettingText:
        """Return the value with what its variables stand for. A variable without a value is a problem."""
        if "${" not in value.text:
            return value
        pieces: list[str] = []
        at = 0
        for match in _VARIABLE.finditer(value.text):
            try:
                replaced = self._value(match[1], match[2] or "", match[3])
            except _NotProvided as why:
                self.problems.append(SettingProblem(key, value.text, str(why), value.origin))
                return value
            pieces += value.text[at : match.start()], replaced
            at = match.end()
        return SettingText("".join(pieces) + value.text[at:], value.origin, is_secret=True) if pieces else value

    def _value(self, name: str, path: str, key: str) -> str:
        provider = self._providers.get(name)
        if provider is None:
            raise _NotProvided(f"there is no config provider {name}; there is {', '.join(self._providers) or 'none'}")
        return provider(path, key, self._parameters[name])

    def _of_environment(self, _path: str, key: str, parameters: dict[str, str]) -> str:
        pattern = parameters.get(_ALLOW_LIST)
        if pattern is not None and re.fullmatch(pattern, key) is None:
            raise _NotProvided(f"{_ALLOW_LIST} does not allow the environment variable {key}")
        if key not in self._environment:
            raise _NotProvided(f"there is no environment variable {key}")
        return self._environment[key]

    def _of_file(self, path: str, key: str, parameters: dict[str, str]) -> str:
        file = _allowed(Path(path), parameters)
        if file not in self._files:
            self._files[file] = read_properties(_read(file), origin=path)
        if key not in self._files[file]:
            raise _NotProvided(f"{path} has no {key}")
        return self._files[file][key].text

    def _of_directory(self, path: str, key: str, parameters: dict[str, str]) -> str:
        if Path(key).name != key:
            raise _NotProvided(f"{key} is not the name of a file in {path}")
        return _read(_allowed(Path(path) / key, parameters)).removesuffix("\n")


def _allowed(path: Path, parameters: dict[str, str]) -> Path:
    """Return the file itself, links followed, if the provider may read it. Raises `_NotProvided`."""
    if not path.is_absolute():
        raise _NotProvided(f"{path} is not an absolute path")
    file = path.resolve()
    if _ALLOWED_PATHS in parameters:
        roots = [Path(root.strip()).resolve() for root in parameters[_ALLOWED_PATHS].split(",") if root.strip()]
        if not any(file == root or root in file.parents for root in roots):
            raise _NotProvided(f"{_ALLOWED_PATHS} does not allow {path}")
    return file


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _NotProvided(f"cannot read {path}: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise _NotProvided(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _NotProvided(f"{path} is not UTF-8") from None  # the error would show a part of it


def expand(
    given: Mapping[str, SettingText], trusted: frozenset[str], environment: Mapping[str, str]
) -> tuple[dict[str, SettingText], list[SettingProblem]]:
    """Expand the values of the trusted settings; returns all settings without those of the providers, and problems."""
    of_providers = {key: value for key, value in given.items() if key == NAMES or key.startswith(NAMES + ".")}
    providers = ConfigProviders(of_providers, environment)
    expanded = {
        key: providers.expand(key, value) if key in trusted else value
        for key, value in given.items()
        if key not in of_providers
    }
    return expanded, providers.problems
