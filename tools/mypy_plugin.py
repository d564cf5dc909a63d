"""Reports and corrects, for mypy, types that are not those of run time: compiled modules check them at run time.

Set operators: typeshed says that `frozenset | x`, `&`, `-` and `^` are a frozenset for every set-like `x`. They are for
a set or a frozenset. The view of a dict's keys or items, or another `collections.abc.Set`, answers itself, with a set;
a compiled function that declares a frozenset refuses that. Write `frozen.union(keys)`: that is a frozenset for every
iterable. `make compile` takes this correction too, so that a compiled module does not check for the wrong type.

Arguments: no call from another module gives a typed parameter of a compiled function or class an argument that fits
only because it, or what it contains, is `Any`. The compiled form would raise TypeError where the plain form goes on.
Give the value a type where it is decoded, or convert it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import compile_modules
from mypy.checkexpr import has_any_type
from mypy.erasetype import erase_typevars
from mypy.errorcodes import ErrorCode
from mypy.nodes import ARG_STAR, ARG_STAR2, Decorator, FuncDef, SymbolNode, TypeInfo, Var
from mypy.options import Options
from mypy.plugin import FunctionContext, MethodContext, Plugin, ReportConfigContext
from mypy.subtypes import is_proper_subtype
from mypy.types import AnyType, CallableType, Instance, Type, TypeVarLikeType, UnionType, get_proper_type

ANY_ARGUMENT = ErrorCode("any-argument", "Report arguments of compiled functions that fit as Any", "Ottla")

_OPERATORS = frozenset(f"builtins.frozenset.__{name}__" for name in ("or", "and", "sub", "xor"))
_FROZEN = frozenset({"builtins.set", "builtins.frozenset"})
_FORWARDED = frozenset({"typing.Coroutine", "typing.Awaitable", "_asyncio.Future", "_asyncio.Task"})


class SetOperators(Plugin):
    """Gives an operator of a frozenset the type that it has at run time."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Return the correction of such an operator, or None for any other method."""
        return _corrected if fullname in _OPERATORS else None


class RunTimeTypes(SetOperators):
    """Checks the arguments that compiled functions get, besides."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._sources = {compile_modules.module_name(path): path.as_posix() for path in compile_modules.selected()}

    def report_config_data(self, ctx: ReportConfigContext) -> list[str]:
        """Return what the results depend on besides the sources: another list of modules makes the cache stale."""
        del ctx
        return sorted(self._sources)

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """Return the check of the arguments of a compiled function or class, or None for any other."""
        return self._check(fullname)

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Return the correction of an operator, the check of a compiled method, or None for any other method."""
        return super().get_method_hook(fullname) or self._check(fullname)

    def _check(self, fullname: str) -> Callable[[FunctionContext | MethodContext], Type] | None:
        module = fullname.rpartition(".")[0]
        module = module if module in self._sources else module.rpartition(".")[0]
        if module not in self._sources:
            return None

        def check(context: FunctionContext | MethodContext) -> Type:
            if _source_of(context) not in {"", self._sources[module]}:
                symbol = self.lookup_fully_qualified(fullname)
                _check_arguments(fullname, _parameters(symbol.node if symbol else None, len(context.args)), context)
            return context.default_return_type

        return check


def _source_of(context: FunctionContext | MethodContext) -> str:
    """Return the path of the calling module below `src`; empty for tests and tools."""
    _, found, path = f"/{context.api.path}".rpartition("/src/")
    return path if found else ""


def _parameters(node: SymbolNode | None, count: int) -> Sequence[Type]:
    """Return the types of the last `count` parameters: a bound method lacks the first."""
    if isinstance(node, TypeInfo):
        made = node.get_method("__init__" if node.tuple_type is None else "__new__")
        node = made if isinstance(made, FuncDef) else None
    if isinstance(node, Decorator):
        node = node.var
    declared = get_proper_type(node.type) if isinstance(node, FuncDef | Var) else None
    return declared.arg_types[len(declared.arg_types) - count :] if isinstance(declared, CallableType) else ()


def _check_arguments(name: str, parameters: Sequence[Type], context: FunctionContext | MethodContext) -> None:
    for formal, types, arguments, kinds in zip(
        parameters, context.arg_types, context.args, context.arg_kinds, strict=False
    ):
        for given, argument, kind in zip(types, arguments, kinds, strict=True):
            unpacked = kind in {ARG_STAR, ARG_STAR2}
            if (is_checked(formal) and has_any_type(given)) if unpacked else fits_by_any(given, formal):
                message = f"{name} gets an argument of the type {given} for a parameter of the type {formal}"
                context.api.fail(message, argument, code=ANY_ARGUMENT)


def is_checked(formal: Type) -> bool:
    """Return whether a compiled function checks arguments of this type, or what they contain."""
    formal = get_proper_type(formal)
    if not isinstance(formal, Instance):
        return not isinstance(formal, AnyType | TypeVarLikeType | CallableType)
    name = formal.type.fullname
    return name != "builtins.object" and name not in _FORWARDED and not (formal.type.is_protocol and "ottla." in name)


def fits_by_any(given: Type, formal: Type) -> bool:
    """Return whether an argument fits its parameter only because it, or what it contains, is Any."""
    given, formal = get_proper_type(given), get_proper_type(formal)
    if not is_checked(formal) or not has_any_type(given):
        return False
    items = given.items if isinstance(given, UnionType) else [given]
    if any(isinstance(get_proper_type(item), AnyType) for item in items):
        return True
    erased = erase_typevars(formal)
    return not has_any_type(erased) and not is_proper_subtype(given, erased)


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
    """Return the plugin for `mypy`, which calls this."""
    del version
    return RunTimeTypes


def set_operators(version: str) -> type[Plugin]:
    """Return the plugin for `make compile`."""
    del version
    return SetOperators
