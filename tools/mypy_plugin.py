"""Corrects the types of set operators for mypy, which compiled modules check at run time.

typeshed says that `frozenset | x`, `&`, `-` and `^` are a frozenset for every set-like `x`. They are for a set or a
frozenset. The view of a dict's keys or items, or another `collections.abc.Set`, answers itself, with a set; a compiled
function that declares a frozenset refuses that. Write `frozen.union(keys)`: a frozenset for every iterable.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, Type, get_proper_type

_OPERATORS = frozenset(f"builtins.frozenset.__{name}__" for name in ("or", "and", "sub", "xor"))
_FROZEN = frozenset({"builtins.set", "builtins.frozenset"})


class SetOperators(Plugin):
    """Gives such an operator the type `Set`, which a declared frozenset does not accept."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Return the correction of an operator, or None for any other method."""
        return _corrected if fullname in _OPERATORS else None


def _corrected(context: MethodContext) -> Type:
    result = get_proper_type(context.default_return_type)
    for types in context.arg_types:
        for given in types:
            other = get_proper_type(given)
            if not isinstance(result, Instance) or not isinstance(other, Instance):
                continue
            if not any(base.fullname in _FROZEN for base in other.type.mro):
                return context.api.named_generic_type("typing.AbstractSet", list(result.args))
    return result


def plugin(version: str) -> type[Plugin]:
    """Return the plugin; mypy calls this."""
    del version
    return SetOperators
