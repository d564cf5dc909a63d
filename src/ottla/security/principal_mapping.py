"""Maps the distinguished name of a client's certificate to the name of a principal (KIP-371).

    ssl.principal.mapping.rules=RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT

The first rule whose expression matches the whole name decides. The operator writes the expressions and clients choose
the names, within what their issuer allows, so that RE2 matches them: in time linear in the name.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from ottla.core.regexes import InvalidRegex, compile_regex

_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>{_PART})/(?P<replacement>{_PART})/(?P<case>[LU]?))[^\S\n]*"
)
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class InvalidRules(ValueError):
    """Reports rules that cannot be parsed; its text is the reason."""


class NoMatchingRule(ValueError):
    """Reports a name that no rule maps: its client is not served."""


class _Rule(NamedTuple):
    pattern: Any  # of RE2; None for DEFAULT
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = _replace_all(self.pattern, self.replacement, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


class PrincipalMapper:
    """Applies the rules of `ssl.principal.mapping.rules`. Raises InvalidRules.

    >>> mapper = PrincipalMapper("RULE:^CN=([^,]*),OU=Ops,.*$/$1/L, DEFAULT")
    >>> mapper.name("CN=Ann,OU=Ops,O=Example"), mapper.name("CN=Bob")
    ('ann', 'CN=Bob')
    """

    def __init__(self, rules: str) -> None:
        self._text = rules
        self._rules = _parse(rules) if rules.strip() else [_Rule(None, "", "")]

    def name(self, distinguished_name: str) -> str:
        """Return the name of the principal. Raises NoMatchingRule."""
        for rule in self._rules:
            mapped = rule.apply(distinguished_name)
            if mapped is not None:
                return mapped
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules={self._text} matches {distinguished_name!r}")


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    at = 0
    while True:
        rule = _RULE.match(text, at)
        if rule is None or (rule.end() < len(text) and text[rule.end()] not in ",\n"):
            raise InvalidRules(f"{text[at:].strip()!r} is not RULE:pattern/replacement/, .../L, .../U or DEFAULT")
        rules.append(_rule(rule))
        at = rule.end() + 1
        if not text[at:].strip():
            return rules


def _rule(found: re.Match[str]) -> _Rule:
    if found["default"]:
        return _Rule(None, "", "")
    try:
        pattern = compile_regex(found["pattern"])
    except InvalidRegex as error:
        raise InvalidRules(f"the pattern {found['pattern']!r}: {error}") from None
    return _Rule(pattern, found["replacement"], found["case"])


def _replace_all(pattern: Any, replacement: str, name: str) -> str:
    """Replace each match as Java does: `$1` is a group, and a backslash makes a letter of what follows."""
    parts: list[str] = []
    at = 0
    for match in pattern.finditer(name):
        parts += [name[at : match.start()], _expand(replacement, match)]
        at = match.end()
    return "".join([*parts, name[at:]])


def _expand(replacement: str, match: Any) -> str:
    groups: tuple[str | None, ...] = (match.group(0), *match.groups())

    def expanded(reference: re.Match[str]) -> str:
        if reference[1] is not None:
            return str(reference[1])
        digits: str = reference[2]
        size = len(digits)
        while size > 1 and int(digits[:size]) >= len(groups):  # of $12 the first digits that are a group
            size -= 1
        number = int(digits[:size])
        return f"${digits}" if number >= len(groups) else (groups[number] or "") + digits[size:]

    return _REFERENCE.sub(expanded, replacement)
