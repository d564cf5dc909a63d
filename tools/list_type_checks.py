"""Lists where compiled modules check a type at run time, with the type and the line: `list_type_checks.py [KIND ...]`.

mypyc checks a value wherever what it knows of it is wider than the type that mypy gives to it. Plain Python does not,
so a value of another type than the declared one fails in the compiled form alone. The kinds:

- `call`: the result of a function or coroutine. Of typeshed's functions the declared type may be wrong.
- `field`: an attribute of a plain object, or a field of a tuple. What is decoded from bytes and text is tried by
  tests/contracts/test_types_of_compiled_arguments.py.
- `parameter`, `attribute`: what plain modules pass to a function, and what they set. mypy reports arguments of the type
  `Any`, of calls from other modules: tools/mypy_plugin.py.
- `other`: items of containers, iteration, names that have a narrower type than before.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from compile_modules import SOURCES, mypy_arguments, selected
from mypy.fscache import FileSystemCache
from mypyc.build import construct_groups, get_mypy_config
from mypyc.codegen.emitmodule import compile_modules_to_ir, parse_and_typecheck
from mypyc.errors import Errors
from mypyc.ir.func_ir import FuncIR
from mypyc.ir.module_ir import ModuleIR
from mypyc.ir.ops import Call, CallC, Cast, GetAttr, MethodCall, TupleGet, Unbox, Value
from mypyc.ir.rtypes import is_object_rprimitive
from mypyc.irbuild.mapper import Mapper
from mypyc.options import CompilerOptions

KINDS = ("call", "field", "parameter", "attribute", "other")
_CALLS = ("PyObject_Call", "PyObject_Vectorcall", "CPyIter_Send", "CPy_GetExcValue", "CPy_FetchStopIterationValue")
_FIELDS = ("CPyObject_GetAttr", "CPySequenceTuple_GetItem")


class Check(NamedTuple):
    """One place: what is checked there, against which type, and the source."""

    kind: str
    module: str
    line: int
    expected: str
    what: str


def build() -> dict[str, ModuleIR]:
    """Compile the modules to mypyc's intermediate representation, with the options of `make compile`."""
    here = Path.cwd()
    os.chdir(SOURCES)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            options = CompilerOptions(multi_file=True, target_dir=scratch, group_name="ottla")
            arguments = [*mypy_arguments(Path(scratch)), *map(str, selected())]
            cache = FileSystemCache()
            sources, everything, mypy_options = get_mypy_config(arguments, None, options, cache)
            groups = construct_groups(sources, False, True, "ottla")
            result = parse_and_typecheck(everything, mypy_options, options, groups, cache)
            mapper = Mapper({source.module: name for group, name in groups for source in group})
            return dict(compile_modules_to_ir(result, mapper, options, Errors(mypy_options)))
    finally:
        os.chdir(here)


def checks_of(module: ModuleIR, lines: list[str]) -> Iterator[Check]:
    """Yield the checks of one module; a function that is generated from another one has its lines."""
    name = module.fullname
    for native in module.classes:
        for attribute, kind in native.attributes.items():
            if native.is_ext_class and not native.is_generated and not is_object_rprimitive(kind):
                yield Check("attribute", name, 0, str(kind), f"{native.name}.{attribute}")
    for function in module.functions:
        yield from _parameters(function, name)
        for block in function.blocks:
            for op in block.ops:
                if isinstance(op, Unbox) or (isinstance(op, Cast) and not op.is_unchecked):
                    text = lines[op.line - 1].strip() if 0 < op.line <= len(lines) else ""
                    yield Check(_kind_of(op.src), name, op.line, str(op.type), text)


def _parameters(function: FuncIR, module: str) -> Iterator[Check]:
    for argument in function.args:
        if argument.name != "self" and not argument.name.startswith("__") and not is_object_rprimitive(argument.type):
            where = f"{function.class_name}.{function.name}" if function.class_name else function.name
            yield Check("parameter", module, function.line, str(argument.type), f"{where}({argument.name})")


def _kind_of(source: Value) -> str:
    if isinstance(source, CallC):
        called = source.function_name
        return "call" if called.startswith(_CALLS) else "field" if called.startswith(_FIELDS) else "other"
    if isinstance(source, Call | MethodCall):
        return "call"
    return "field" if isinstance(source, GetAttr | TupleGet) else "other"


def main() -> int:
    """Print the places of the kinds that are named, or of all, and how many there are of each kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="all by default")
    wanted = parser.parse_args().kinds or KINDS
    found: set[Check] = set()
    for name, module in build().items():
        lines = (SOURCES / name.replace(".", "/")).with_suffix(".py").read_text().splitlines()
        found.update(checks_of(module, lines))
    for check in sorted(found):
        if check.kind in wanted:
            print(f"{check.kind} {check.module}:{check.line}: {check.expected}: {check.what}")
    print(", ".join(f"{sum(check.kind == kind for check in found)} of {kind}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
