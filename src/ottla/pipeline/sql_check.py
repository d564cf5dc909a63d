"""Checks the SQL of a job file before Spark runs it: whether it only computes from the job's tables.

Spark's SQL can call methods of Java (`reflect`), run programs (`TRANSFORM ... USING`), read and write files by their
path, and change the session. A job file is data, so what is not known to be harmless is refused: statements and
relations by their kinds, functions by Spark's own groups. Spark's parser does the reading; nothing is looked up, loaded
or run for it. `--function NAME` lets a job use a function of Spark's that is refused by default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CATALYST: Final = "org.apache.spark.sql.catalyst."
_TREE: Final = _CATALYST + "trees.TreeNode"
_PLANS: Final = _names(
    "Aggregate Deduplicate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll "
    "LocalLimit LocalRelation Offset OneRowRelation Pivot Project Range Sample Sort SubqueryAlias Tail Union "
    "Unpivot UnresolvedHint UnresolvedWith Window WithWindowDefinition"
)
"""Parts of a query that take rows from others and read or write nothing."""
_UNRESOLVED: Final = _names(
    "MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator "
    "UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal UnresolvedPipeAggregateOrdinal UnresolvedQualify "
    "UnresolvedRegex UnresolvedRelation UnresolvedSeed UnresolvedStar UnresolvedStarExceptOrReplace "
    "UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction UnresolvedWithinGroup"
)
"""Names that the parser leaves to be looked up. Those whose name is computed (`IDENTIFIER(...)`) are not among them."""
_EXPRESSIONS: Final = _CATALYST + "expressions."
_CALLS: Final = {
    "UnresolvedFunction": "nameParts",
    "UnresolvedTableValuedFunction": "name",
    "UnresolvedGenerator": "name",
    "UnresolvedRelation": "multipartIdentifier",
}
_GROUPS: Final = _names(
    "agg_funcs array_funcs bitwise_funcs collection_funcs conditional_funcs conversion_funcs csv_funcs datetime_funcs "
    "generator_funcs hash_funcs json_funcs lambda_funcs map_funcs math_funcs predicate_funcs sketch_funcs "
    "st_funcs string_funcs struct_funcs url_funcs variant_funcs vector_funcs window_funcs"
)
"""Spark's own groups of functions that compute from their arguments alone."""
_ALONE: Final = _names(
    "aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count hmac "
    "monotonically_increasing_id raise_error rand randn random randstr range try_aes_decrypt typeof uniform uuid "
    "xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string"
)
"""Functions of other groups that do so."""


class ForbiddenSql(ValueError):
    """SQL that does more than compute from the job's tables. The message says what, and how it is allowed."""


def checked_expression(spark: SparkSession, text: str, allowed: Collection[str] = ()) -> Column:
    """Return the column of an expression. Raises ForbiddenSql, and ParseException if it is none."""
    from pyspark.sql import functions as F

    _check(spark, _parser(spark).parseExpression(text), allowed)
    return F.expr(text)


def check_query(spark: SparkSession, text: str, allowed: Collection[str] = ()) -> None:
    """Check that a text is a query, and what it reads. Raises ForbiddenSql, and ParseException if it is no SQL."""
    _check(spark, _parser(spark).parsePlan(text), allowed)


def _parser(spark: SparkSession) -> Any:
    session: Any = spark
    return session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - PySpark has no parser of its own


def _check(spark: SparkSession, tree: Any, allowed: Collection[str]) -> None:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the same
    names, is_harmless = {name.lower() for name in allowed}, _Functions(gateway.jvm)
    for node, name in _Walk(gateway).nodes(tree):
        kind = name.rpartition(".")[2]
        if name.startswith(_EXPRESSIONS):
            continue
        if not (name == f"{_CATALYST}plans.logical.{kind}" and kind in _PLANS) and not (
            name == f"{_CATALYST}analysis.{kind}" and kind in _UNRESOLVED
        ):
            raise ForbiddenSql(f"{kind} is not for a job file: its SQL only computes from the job's tables")
        if kind not in _CALLS:
            continue
        called = _name_of(kind, getattr(node, _CALLS[kind])())
        if kind == "UnresolvedRelation":
            if len(called) > 1:
                raise ForbiddenSql(f"{'.'.join(called)} is no table of the job")
        elif not is_harmless(called) and ".".join(called).lower() not in names:
            function = ".".join(called)
            raise ForbiddenSql(
                f"the function {function} is not one that only computes from its arguments; "
                f"the option --function {function} allows it"
            )


def _name_of(kind: str, name: Any) -> list[str]:
    """Return the parts of a name, which is a sequence of texts, or of a generator an identifier of Catalyst."""
    if kind == "UnresolvedGenerator":
        return str(name.unquotedString()).split(".")
    return [str(name.apply(place)) for place in range(name.length())]


class _Functions:
    """Decides by Spark's registry whether a function of its own is harmless."""

    def __init__(self, jvm: Any) -> None:
        analysis = getattr(jvm, _CATALYST + "analysis")
        self._identifier: Callable[[str], Any] = getattr(jvm, _CATALYST + "FunctionIdentifier")
        self._registries = analysis.FunctionRegistry.builtin(), analysis.TableFunctionRegistry.builtin()

    def __call__(self, name: list[str]) -> bool:
        *place, function = (part.lower() for part in name)
        if place not in ([], ["builtin"], ["system", "builtin"]):
            return False
        if function in _ALONE:
            return True
        for registry in self._registries:
            info = registry.lookupFunction(self._identifier(function))
            if info.isDefined():
                return str(info.get().getGroup()) in _GROUPS
        return not place  # there is none: Spark says so


class _Walk:
    """Walks a tree of Catalyst by all fields of its nodes, of which some are in lists, maps and tuples."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._kinds: dict[str, str] = {}

    def nodes(self, tree: Any) -> Iterator[tuple[Any, str]]:
        """Return each node with the name of its class."""
        from py4j.java_gateway import JavaObject  # type: ignore[import-untyped] # late: a job file is read without Spark

        waiting = [tree]
        while waiting:
            element = waiting.pop()
            if not isinstance(element, JavaObject):
                continue
            java: Any = element
            name = str(java.getClass().getName())
            kind = self._kinds.get(name)
            if kind is None:
                kind = self._kinds[name] = self._kind_of(element)
            if kind == _TREE:
                yield element, name
            if kind == _ITERABLE:
                elements = java.iterator()
                while elements.hasNext():
                    waiting.append(elements.next())
            elif kind:
                waiting += (java.productElement(place) for place in range(java.productArity()))

    def _kind_of(self, element: Any) -> str:
        from py4j.java_gateway import is_instance_of

        return next((kind for kind in (_TREE, _ITERABLE, _PRODUCT) if is_instance_of(self._gateway, element, kind)), "")


_ITERABLE: Final = "scala.collection.Iterable"
_PRODUCT: Final = "scala.Product"
