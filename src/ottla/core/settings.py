"""Declares settings once, with their type, unit, limits and description, and parses them.

Parsing, validation, defaults, `--help`, docs/configuration.md and the response to DescribeConfigs all use the one
declaration. A section is a subclass of `Section` whose fields are created by `setting`; each package declares its own
and gets only that one.

A value comes from, first wins: `-o name=value` and the command line's own options, environment variables
(`OTTLA_LOG_SEGMENT_BYTES`), the file given by `--config`, the default. `SettingText` records the origin, so that an
error can name the line to fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast, dataclass_transform

T = TypeVar("T")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1


class Type(Enum):
    """Lists the types of settings; the values are the numbers in DescribeConfigs (Kafka's ConfigDef.Type)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Content(Enum):
    """Lists what the text of a setting is, where any text is valid.

    Nothing that a request sets may name code, a file or a URL (CVE-2023-25194, CVE-2025-27817): a setting that does is
    read at the start only. One that requests can set declares which of the first three it is.
    """

    NAME = "name"  # compared with names of the protocol or addresses: topics, cipher suites, metrics, clients
    PATTERN = "pattern"  # matched against such names
    MEMBER = "member"  # one of the items of another setting, which is read at the start only
    OUTSIDE = "outside"  # a file, a directory, a URL, a class or a command


class ConfigResourceType(IntEnum):
    """Lists the types of entities with settings (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterConfigOpType(IntEnum):
    """Lists the operations on one setting (Kafka's AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1  # back to the default
    APPEND = 2
    SUBTRACT = 3


class Setting(NamedTuple):
    """Describes one setting, without its value."""

    key: str  # its name in Kafka's configuration files
    doc: str
    kind: Type
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False  # may change without a restart
    synonyms: tuple[str, ...] = ()  # other keys that set it, the strongest first (log.retention.minutes, ...)
    topic_key: str = ""  # the topic setting it is the default of (`retention.ms`), if any
    scale: Mapping[str, int] = MappingProxyType({})  # synonym -> factor into this setting's unit
    never: float | None = None  # a number within the limits that is no value
    no_effect: str = ""  # why it is accepted without effect; empty if it has one
    content: Content | None = None  # of a text that is not one of `choices`; requests can set it only with one
    per_listener: bool = False  # `listener.name.<name>.<key>` sets it for one listener
    per_mechanism: bool = False  # `<mechanism>.<key>` sets it for one mechanism of SASL, also after a listener's prefix

    @property
    def secret(self) -> bool:
        """Return whether the value must never be shown."""
        return self.kind is Type.PASSWORD


HIDDEN_TEXT: Final = "[hidden]"
"""Shown in place of a secret."""

_SECRET_NAME: Final = re.compile(r"password|passphrase|jaas|secret|credential|\.key$|token$")


def is_secret_name(key: str) -> bool:
    """Return whether the name of a setting that is not declared says that it is a secret.

    >>> is_secret_name("listener.name.a.plain.sasl.jaas.config"), is_secret_name("log.dirs")
    (True, False)
    """
    return _SECRET_NAME.search(key.lower()) is not None


class SettingText(NamedTuple):
    """Holds the text of a value and where it was written."""

    text: str
    origin: str  # "server.properties line 12", "-o", "environment variable OTTLA_..."
    is_secret: bool = False  # it is of a secret setting, or came from a config provider: it is never shown

    @property
    def shown(self) -> str:
        """Return the text as logs and errors may show it."""
        return HIDDEN_TEXT if self.is_secret else self.text

    def __repr__(self) -> str:
        return f"SettingText(text={self.shown!r}, origin={self.origin!r})"


class SettingProblem(NamedTuple):
    """Describes one invalid setting: its value, its origin and the reason."""

    key: str
    text: str
    reason: str
    origin: str = ""

    def __str__(self) -> str:
        where = f" ({self.origin})" if self.origin else ""
        return f"{self.key}={self.text}{where}: {self.reason}"


class InvalidSettings(Exception):
    """Reports all invalid settings, not only the first, and what else was found worth a warning."""

    def __init__(self, problems: Iterable[SettingProblem], warnings: Iterable[str] = ()) -> None:
        self.problems, self.warnings = tuple(problems), tuple(warnings)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def setting(key: str, *, default: Any, doc: str, kind: Type, **more: Any) -> Any:
    """Create a dataclass field that is a setting; `more` are the fields of `Setting`."""
    spec = Setting(key=key, doc=doc, kind=kind, **more)
    assert not (spec.live and spec.content is Content.OUTSIDE), f"a request must not set {key}"
    return field(default=default, metadata={"setting": spec})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
class Section:
    """Base of the sections: frozen dataclasses with keyword arguments, whose methods are these.

    dataclasses would compile methods of its own for each section at each start, which takes 10 ms of it. A value that
    is not given is the default, which is an attribute of the class.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - self.__dataclass_fields__.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        self.__dict__.update(values)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        secret = {name for name, spec in settings_of(type(self)).items() if spec.secret}
        values = (
            HIDDEN_TEXT if name in secret and value else value
            for name, value in zip(self.__dataclass_fields__, self._values(), strict=True)
        )
        given = zip(self.__dataclass_fields__, values, strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to {name} of {type(self).__name__}")


_SETTINGS: dict[type[Any], Mapping[str, Setting]] = {}


def settings_of(section: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a section by the name of their field."""
    found = _SETTINGS.get(section)
    if found is None:
        declared = {f.name: f.metadata["setting"] for f in fields(section) if "setting" in f.metadata}
        found = _SETTINGS[section] = MappingProxyType(declared)
    return found


_FIELDS_BY_KEY: dict[type[Any], Mapping[str, str]] = {}


def _fields_by_key(section: type[Any]) -> Mapping[str, str]:
    """Return the fields of a section by the names and synonyms of their settings."""
    found = _FIELDS_BY_KEY.get(section)
    if found is None:
        declared = {key: name for name, spec in settings_of(section).items() for key in (spec.key, *spec.synonyms)}
        found = _FIELDS_BY_KEY[section] = declared
    return found


def default_of(section: type[Any], field_name: str) -> Any:
    """Return the default value of a setting."""
    found = next(f.default for f in fields(section) if f.name == field_name)
    assert found is not MISSING, f"{section.__name__}.{field_name} has no default"
    return found


def load(section: type[T], given: Mapping[str, SettingText], *, listener: str = "", mechanism: str = "") -> T:
    """Build a section from text, as a listener has it if one is given, and a mechanism of SASL.

    Raises `InvalidSettings` naming every invalid value.
    """
    values: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    settings = settings_of(section)
    if not listener and not mechanism:  # few of all are given
        fields_by_key = _fields_by_key(section)
        named = {fields_by_key[key] for key in given if key in fields_by_key}
        settings = {name: spec for name, spec in settings.items() if name in named} if named else {}
    for name, spec in settings.items():
        names = (spec.key, *spec.synonyms)
        keys = [(key, key) for key in names]
        if mechanism and spec.per_mechanism:
            keys = [(f"{mechanism.lower()}.{key}", key) for key in names] + keys
        if listener and spec.per_listener:
            keys = [(listener_key(listener, full), key) for full, key in keys] + keys
        found = next(((full, key) for full, key in keys if full in given), None)
        if found is None:
            continue
        full, key = found
        value = given[full]
        try:
            values[name] = parse(spec, value.text, factor=spec.scale.get(key, 1))
        except ValueError as error:
            problems.append(SettingProblem(full, HIDDEN_TEXT if spec.secret else value.shown, str(error), value.origin))
    if problems:
        raise InvalidSettings(problems)
    return section(**values)


LISTENER_PREFIX: Final = "listener.name."


def listener_key(listener: str, key: str) -> str:
    """Return the name of a setting of one listener.

    >>> listener_key("OUTSIDE", "ssl.client.auth")
    'listener.name.outside.ssl.client.auth'
    """
    return f"{LISTENER_PREFIX}{listener.lower()}.{key}"


def split_listener_key(key: str) -> tuple[str, str]:
    """Return the listener that a setting is for, in capitals, and the setting's own name; no listener is empty.

    >>> split_listener_key("listener.name.outside.ssl.client.auth"), split_listener_key("log.dirs")
    (('OUTSIDE', 'ssl.client.auth'), ('', 'log.dirs'))
    """
    if not key.startswith(LISTENER_PREFIX):
        return "", key
    listener, _, rest = key.removeprefix(LISTENER_PREFIX).partition(".")
    return listener.upper(), rest


def parse(spec: Setting, text: str, *, factor: int = 1) -> Any:
    """Parse the text of a value. Raises ValueError whose message describes the valid values."""
    text = text.strip()
    match spec.kind:
        case Type.BOOLEAN:
            if text.lower() not in {"true", "false"}:
                raise ValueError("must be true or false")
            return text.lower() == "true"
        case Type.INT | Type.LONG | Type.SHORT:
            return _within(spec, _whole_number(spec, text, factor))
        case Type.DOUBLE:
            try:
                return _within(spec, float(text))
            except ValueError as error:
                raise ValueError(str(error) if "must be" in str(error) else "must be a number") from None
        case Type.LIST:
            items = tuple(item.strip() for item in text.split(",") if item.strip())
            return _chosen(spec, items)
        case _:
            return _chosen(spec, (text,))[0]


def _whole_number(spec: Setting, text: str, factor: int) -> int:
    try:
        number = int(text)
    except ValueError:
        unit = f" of {spec.unit}" if spec.unit else ""
        raise ValueError(f"must be a whole number{unit}") from None
    number = number if number < 0 else number * factor
    limit = {Type.SHORT: (1 << 15) - 1, Type.INT: INT_MAX}.get(spec.kind, LONG_MAX)
    if not -limit - 1 <= number <= limit:
        raise ValueError(f"must fit in {spec.kind.name.lower()}: at most {limit}")
    return number


def _within(spec: Setting, number: float) -> float:
    unit = f" {spec.unit}" if spec.unit else ""
    if spec.never is not None and number == spec.never:
        raise ValueError(f"must not be {spec.never}{unit}")
    if spec.at_least is not None and spec.at_most is not None and not spec.at_least <= number <= spec.at_most:
        raise ValueError(f"must be from {spec.at_least} to {spec.at_most}{unit}")
    if spec.at_least is not None and number < spec.at_least:
        raise ValueError(f"must be at least {spec.at_least}{unit}")
    if spec.at_most is not None and number > spec.at_most:
        raise ValueError(f"must be at most {spec.at_most}{unit}")
    return number


def _chosen(spec: Setting, items: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [item for item in items if spec.choices and item not in spec.choices]
    if wrong:
        raise ValueError(f"must be one of {', '.join(spec.choices)}")
    return items


def text_of(value: Any) -> str:
    """Format a value as Kafka does in files and responses.

    >>> text_of(True), text_of(("compact", "delete")), text_of(0.5)
    ('true', 'compact,delete', '0.5')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in cast("Iterable[object]", value))
    return str(value)


def normal_text(spec: Setting, text: str) -> str:
    """Format the text of a value as Kafka shows it: without blanks and leading zeros, and a choice given twice once.

    >>> retention = Setting("retention.ms", "", Type.LONG)
    >>> policies = Setting("cleanup.policy", "", Type.LIST, choices=("compact", "delete"))
    >>> normal_text(retention, " 007"), normal_text(policies, "compact , compact"), normal_text(retention, "soon")
    ('7', 'compact', 'soon')
    """
    try:
        value = parse(spec, text)
    except ValueError:
        return text
    if spec.kind is Type.LIST:  # only choices are freed of what is empty or occurs again
        items = [item.strip() for item in text.split(",")] if text.strip() else []
        value = tuple(dict.fromkeys(value)) if spec.choices else tuple(items)
    return text_of(value)


def read_properties(text: str, *, origin: str) -> dict[str, SettingText]:
    r"""Parse a Java properties file: `key=value` or `key: value`, `#` and `!` comments, `\` continues a line.

    >>> read_properties("# hi\nlog.dirs = /a,\\\n  /b", origin="f")["log.dirs"]
    SettingText(text='/a,/b', origin='f line 2')
    """
    settings: dict[str, SettingText] = {}
    pending, started = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip()
        if not pending:
            started = number
            if not line or line[0] in "#!":
                continue
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        line, pending = pending + line, ""
        cut = min((line.index(mark) for mark in "=:" if mark in line), default=len(line))
        key, value = line[:cut].strip(), line[cut + 1 :].strip()
        if key:
            settings[key] = SettingText(value, f"{origin} line {started}")
    return settings


def from_environment(
    environment: Mapping[str, str], known: Iterable[str], per_listener: Iterable[str] = ()
) -> dict[str, SettingText]:
    """Read settings from environment variables: `OTTLA_` and the key in capitals with `_` for `.`.

    >>> from_environment({"OTTLA_LISTENER_NAME_A_1_SSL_KEY": "k"}, (), ("key", "ssl.key"))
    {'listener.name.a_1.ssl.key': SettingText(text='k', origin='environment variable OTTLA_LISTENER_NAME_A_1_SSL_KEY')}
    """
    if not any(name.startswith(_PREFIX) for name in environment):
        return {}
    by_variable = {_variable(key): key for key in known}
    found = {}
    for name, text in environment.items():
        key = by_variable.get(name)
        if key is None and name.startswith(_LISTENER_VARIABLE):
            key = _listener_key_of(name, per_listener)
        if key is not None:
            found[key] = SettingText(text, f"environment variable {name}")
    return found


_PREFIX: Final = "OTTLA_"


def _variable(key: str) -> str:
    return _PREFIX + key.upper().replace(".", "_").replace("-", "_")


_LISTENER_VARIABLE: Final = _variable(LISTENER_PREFIX)


def _listener_key_of(variable: str, per_listener: Iterable[str]) -> str | None:
    """Return the setting of a listener that a variable names: the longest that it ends with."""
    rest = variable.removeprefix(_LISTENER_VARIABLE)
    ends = {_variable(key).removeprefix("OTTLA"): key for key in per_listener}
    end = max((end for end in ends if rest.endswith(end) and rest != end), key=len, default=None)
    return None if end is None else listener_key(rest.removesuffix(end), ends[end])
