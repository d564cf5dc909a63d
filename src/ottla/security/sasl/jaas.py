r"""Parses `sasl.jaas.config` as text: one login module with its options. No class is ever loaded by its name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_JAAS: Final = re.compile(
    r"""\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\s*(?P<options>(?:[\w.\-@]+\s*=\s*(?:"(?:\\.|[^"\\])*"|[^\s";]+)\s*)*);\s*""",
    re.DOTALL,
)
_OPTION: Final = re.compile(r"""([\w.\-@]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s";]+))""", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE)
_USER_PREFIX: Final = "user_"


class JaasConfig(NamedTuple):
    """The login module and its options."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasConfig({self.module}, [hidden])"

    @property
    def users(self) -> dict[str, str]:
        """Return the passwords of the users that PlainLoginModule lists."""
        return {
            name.removeprefix(_USER_PREFIX): password
            for name, password in self.options.items()
            if name.startswith(_USER_PREFIX)
        }


def parse_jaas(text: str) -> JaasConfig:
    r"""Parse a `sasl.jaas.config`. Raises ValueError, which does not show it.

    >>> parsed = parse_jaas(PLAIN_MODULE + ' required username="a" password="b\\"c" user_d="e";')
    >>> parsed.options["password"], parsed.users
    ('b"c', {'d': 'e'})
    """
    match = _JAAS.fullmatch(text)
    if match is None:
        raise ValueError('write: org.apache...ScramLoginModule required username="..." password="...";')
    options = {
        name: bare or re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted, flags=re.DOTALL)
        for name, quoted, bare in _OPTION.findall(match["options"])
    }
    return JaasConfig(match["module"], options)
