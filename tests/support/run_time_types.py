"""Compares values with declared types as compiled modules do, but whole: also what is in containers and in fields."""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ottla.wire.schema import Struct

_MAPPINGS = (dict, collections.abc.Mapping)
_EXACT: dict[Any, tuple[type, ...]] = {int: (int,), bool: (bool,), float: (float, int), type(None): (type(None),)}


def mismatches(value: object, declared: Any, where: str = "value") -> Iterator[str]:
    """Yield each place at which a value is not of its declared type. A bool is no int: a compiled module makes it one."""
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any or isinstance(declared, TypeVar) or declared is object:
        return
    if declared is None:
        declared = type(None)
    if declared in _EXACT:
        fits = isinstance(value, _EXACT[declared]) and (declared is bool or not isinstance(value, bool))
    elif origin in (Union, UnionType):
        if all(list(mismatches(value, item)) for item in arguments):
            yield f"{where} is {value!r}, declared {declared}"
        return
    elif origin is Literal:
        fits = value in arguments
    else:
        fits = isinstance(value, origin or declared)
    if not fits:
        yield f"{where} is {value!r}, declared {declared}"
    elif origin in _MAPPINGS and isinstance(value, collections.abc.Mapping):
        for key, item in value.items():
            yield from mismatches(key, arguments[0], f"a key of {where}")
            yield from mismatches(item, arguments[1], f"{where}[{key!r}]")
    elif origin is tuple and arguments[1:] != (Ellipsis,) and isinstance(value, tuple):
        if len(value) != len(arguments):
            yield f"{where} is {value!r}, declared {declared}"
        for number, (item, kind) in enumerate(zip(value, arguments, strict=False)):
            yield from mismatches(item, kind, f"{where}[{number}]")
    elif arguments and isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from mismatches(item, arguments[0], f"an item of {where}")
    else:
        yield from _fields(value, where)


def _fields(value: object, where: str) -> Iterator[str]:
    kind = type(value)
    if isinstance(value, Struct):
        hints = {name: hint for name, hint in get_type_hints(kind.__init__).items() if name != "return"}
    elif hasattr(kind, "_fields") or is_dataclass(kind):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not typing.ClassVar}
    else:
        return
    for name, hint in hints.items():
        yield from mismatches(getattr(value, name), hint, f"{where}.{name}")
