"""Indexes the ACLs of a snapshot of the cluster by the resources that they are about.

The index is immutable: one with changes shares what is equal. A look-up costs the number of different lengths of
prefixes up to that of the name, not the number of ACLs; the entries of one resource are found by their principal.

A node that cannot be read may have said that something is denied, and so the index says that its resources are
unreadable: an authorizer denies everything about them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ottla.core.acls import (
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    ResourcePattern,
    ResourceType,
    bind,
)


class ResourceAcls:
    """The ACLs of one pattern, as its node has them."""

    __slots__ = ("by_principal", "entries", "is_unreadable", "version")

    def __init__(self, entries: Iterable[AccessControlEntry], version: int, *, is_unreadable: bool = False) -> None:
        self.entries = tuple(dict.fromkeys(entries))  # in the order of the node, each once
        self.version = version  # of the node, for a conditional write
        self.is_unreadable = is_unreadable
        by_principal: dict[str, list[AccessControlEntry]] = {}
        for entry in self.entries:
            by_principal.setdefault(entry.principal, []).append(entry)
        self.by_principal: Mapping[str, tuple[AccessControlEntry, ...]] = {
            principal: tuple(entries) for principal, entries in by_principal.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceAcls) and (
            (self.entries, self.version, self.is_unreadable) == (other.entries, other.version, other.is_unreadable)
        )

    def __hash__(self) -> int:
        return hash((self.entries, self.version, self.is_unreadable))

    @property
    def has_effect(self) -> bool:
        """Return whether it is about its resources at all: a node without entries is not."""
        return self.is_unreadable or bool(self.entries)


UNREADABLE: Final = ""
"""In place of a principal: the patterns whose entries are not known."""

_ByName = Mapping[str, ResourceAcls]
_NONE: Final[_ByName] = MappingProxyType({})


class _TypeIndex:
    """The ACLs of the resources of one type."""

    __slots__ = ("_by_principal", "by_pattern_type", "lengths", "literal", "prefixed", "unreadable", "wildcard")

    def __init__(self, by_pattern_type: Mapping[PatternType, _ByName]) -> None:
        self.by_pattern_type = by_pattern_type
        self.literal = by_pattern_type.get(PatternType.LITERAL, _NONE)
        self.prefixed = by_pattern_type.get(PatternType.PREFIXED, _NONE)
        # of a pattern that this version does not know: it may be about every name
        self.unreadable = [acls for acls in by_pattern_type.get(PatternType.UNKNOWN, _NONE).values() if acls.has_effect]
        self.wildcard = self.literal.get(WILDCARD)
        self.lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))
        self._by_principal: dict[str, list[tuple[PatternType, str, ResourceAcls]]] | None = None

    @property
    def by_principal(self) -> Mapping[str, list[tuple[PatternType, str, ResourceAcls]]]:
        """Return the patterns with entries of each principal, those that cannot be read by `UNREADABLE`."""
        if self._by_principal is not None:
            return self._by_principal
        patterns: dict[str, list[tuple[PatternType, str, ResourceAcls]]] = {}
        for pattern_type, by_name in self.by_pattern_type.items():
            for name, acls in by_name.items():
                for principal in (UNREADABLE,) if acls.is_unreadable else acls.by_principal:
                    patterns.setdefault(principal, []).append((pattern_type, name, acls))
        self._by_principal = patterns
        return patterns

    def about(self, name: str) -> list[ResourceAcls]:
        covering: list[ResourceAcls] = [*self.unreadable]
        if (literal := self.literal.get(name)) is not None and literal.has_effect:
            covering.append(literal)
        if (wildcard := self.wildcard) is not None and wildcard is not literal and wildcard.has_effect:
            covering.append(wildcard)
        for length in self.lengths:
            if length > len(name):
                break
            if (prefixed := self.prefixed.get(name[:length])) is not None and prefixed.has_effect:
                covering.append(prefixed)
        return covering


_numbers: Final = itertools.count(1)


class AclIndex:
    """All ACLs of a snapshot.

    `number` is that of no other index: what is remembered of one is remembered by its number and does not keep it.
    """

    __slots__ = ("_by_type", "number")

    def __init__(self, by_type: Mapping[ResourceType, _TypeIndex] = MappingProxyType({})) -> None:
        self._by_type = by_type
        self.number = next(_numbers)

    def with_changes(self, changes: Mapping[ResourcePattern, ResourceAcls | None]) -> AclIndex:
        """Return the index with some patterns' ACLs added, changed or (None) removed; itself if nothing differs."""
        copied: dict[tuple[ResourceType, PatternType], dict[str, ResourceAcls]] = {}
        for pattern, acls in changes.items():
            known = self.get(pattern)
            if acls == known:
                continue
            resource_type, pattern_type, name = pattern
            by_name = copied.get((resource_type, pattern_type))
            if by_name is None:
                of_type = self._by_type.get(resource_type)
                by_name = dict(of_type.by_pattern_type.get(pattern_type, _NONE)) if of_type is not None else {}
                copied[resource_type, pattern_type] = by_name
            if acls is None:
                by_name.pop(name, None)
            else:
                by_name[name] = acls
        if not copied:
            return self
        by_type = dict(self._by_type)
        for changed_type in {resource_type for resource_type, _ in copied}:
            old = by_type.get(changed_type)
            by_pattern_type = dict(old.by_pattern_type) if old is not None else {}
            by_pattern_type |= {pattern: names for (type_, pattern), names in copied.items() if type_ == changed_type}
            by_type[changed_type] = _TypeIndex(by_pattern_type)
        return AclIndex(by_type)

    def replaced_by(self, acls: Mapping[ResourcePattern, ResourceAcls | None]) -> AclIndex:
        """Return the index of these ACLs alone, with those of this one that are equal; itself if all are."""
        gone: dict[ResourcePattern, ResourceAcls | None] = {
            pattern: None for pattern in self.patterns() if pattern not in acls
        }
        return self.with_changes({**gone, **acls})

    def get(self, pattern: ResourcePattern) -> ResourceAcls | None:
        """Return the ACLs of exactly this pattern."""
        of_type = self._by_type.get(pattern.resource_type)
        return None if of_type is None else of_type.by_pattern_type.get(pattern.pattern_type, _NONE).get(pattern.name)

    def about(self, resource_type: ResourceType, name: str) -> list[ResourceAcls]:
        """Return the ACLs of every pattern that this resource matches."""
        of_type = self._by_type.get(resource_type)
        return of_type.about(name) if of_type is not None else []

    def of_principal(self, resource_type: ResourceType, principal: str) -> list[tuple[PatternType, str, ResourceAcls]]:
        """Return the patterns of a type with entries of a principal, or those that are unreadable (`UNREADABLE`)."""
        of_type = self._by_type.get(resource_type)
        return of_type.by_principal.get(principal, []) if of_type is not None else []

    def patterns(self, resource_type: ResourceType | None = None) -> Iterator[ResourcePattern]:
        """Return the patterns of a type, or of all, which have a node."""
        for type_, of_type in self._by_type.items():
            if resource_type in {None, type_}:
                for pattern_type, by_name in of_type.by_pattern_type.items():
                    for name in by_name:
                        yield ResourcePattern(type_, pattern_type, name)

    def candidates(self, chosen: AclFilter) -> Iterator[ResourcePattern]:
        """Return the patterns that a filter may match: one with a name costs no look at all others."""
        name = chosen.resource_name
        types = ResourceType if chosen.resource_type == ResourceType.ANY else (chosen.resource_type,)
        for resource_type in types:
            of_type = self._by_type.get(resource_type)
            if of_type is None:
                continue
            if name is None:
                yield from self.patterns(resource_type)
                continue
            yield ResourcePattern(resource_type, PatternType.LITERAL, name)
            if name != WILDCARD:
                yield ResourcePattern(resource_type, PatternType.LITERAL, WILDCARD)
            lengths = {*of_type.lengths, len(name)}
            for length in sorted(lengths):
                if length <= len(name):
                    yield ResourcePattern(resource_type, PatternType.PREFIXED, name[:length])

    def choose(self, pattern: ResourcePattern, chosen: AclFilter) -> list[AccessControlEntry]:
        """Return the entries of a pattern that a filter chooses."""
        acls = self.get(pattern)
        if acls is None or not chosen.matches_pattern(pattern):
            return []
        entries = acls.entries if chosen.principal is None else acls.by_principal.get(chosen.principal, ())
        return [entry for entry in entries if chosen.matches_entry(entry)]

    def bindings(self) -> Iterator[AclBinding]:
        """Return all ACLs that can be read."""
        for pattern in self.patterns():
            acls = self.get(pattern)
            for entry in acls.entries if acls is not None else ():
                yield bind(pattern, entry)


NO_ACLS: Final = AclIndex()
