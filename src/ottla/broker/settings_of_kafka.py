"""Recognizes settings of Kafka's brokers that Ottla does not have.

Security that would be missing prevents a start: the operator's file says that clients are authenticated, and they would
not be. Settings of a KRaft quorum have no effect. Imported only if there are unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.core.settings import SettingProblem, SettingText

_OFF: Final = frozenset({"", "false", "none", "plaintext"})
"""Values of security settings with which Kafka has no such security either."""

_SECURITY: Final = (
    (
        re.compile(r"authorizer\.class\.name|super\.users|zookeeper\.set\.acl"),
        "Ottla has no authorization yet: every client may read, write and delete everything",
    ),
    (
        re.compile(r"(.*\.)?sasl\..*|delegation\.token\.(master|secret)\.key"),
        "Ottla has no authentication yet: any client may connect",
    ),
    (
        re.compile(r"(.*\.)?ssl\..*|security\.providers"),
        "Ottla has no TLS yet: connections are not encrypted, and no certificate is checked",
    ),
    (
        re.compile(r"security\.inter\.broker\.protocol"),
        "Ottla has no TLS and no authentication yet: brokers connect to each other with PLAINTEXT",
    ),
    (re.compile(r"(.*\.)?principal\.builder\.class"), "Ottla has no authentication yet: clients have no principals"),
)
_SECRET: Final = re.compile(r"password|jaas|secret|\.key$|master")

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
            text = "[hidden]" if _SECRET.search(key) else value.text
            problems.append(SettingProblem(key, text, f"{why}. Leave the setting out to go without it", value.origin))
    return problems


def _security_of(key: str) -> str:
    """Return what is missing; empty if the setting asks for no security."""
    return "" if is_of_kraft(key) else next((why for names, why in _SECURITY if names.fullmatch(key)), "")


def is_security(key: str) -> bool:
    """Return whether a setting of Kafka's asks for security.

    >>> is_security("listener.name.outside.ssl.keystore.location"), is_security("log.dirs")
    (True, False)
    """
    return bool(_security_of(key))


def is_of_kraft(key: str) -> bool:
    """Return whether Kafka has the setting for its KRaft quorum only."""
    return _KRAFT.fullmatch(key) is not None


def security_in(environment: Mapping[str, str]) -> dict[str, SettingText]:
    """Return the security settings among the environment variables, which may set what a file may.

    >>> security_in({"OTTLA_SSL_KEYSTORE_LOCATION": "/k", "OTTLA_LOG_LEVEL": "INFO"})
    {'ssl.keystore.location': SettingText(text='/k', origin='environment variable OTTLA_SSL_KEYSTORE_LOCATION')}
    """
    found = {}
    for name, text in environment.items():
        key = name.removeprefix(_PREFIX).lower().replace("_", ".")
        if name.startswith(_PREFIX) and is_security(key):
            found[key] = SettingText(text, f"environment variable {name}")
    return found
