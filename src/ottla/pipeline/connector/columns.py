"""Declares the columns of a record, as Spark's Kafka source has them: name, Arrow's type and Spark's."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """One column under both names of its type."""

    arrow: pa.DataType
    spark: str


COLUMNS = MappingProxyType(
    {
        "key": Column(pa.binary(), "binary"),
        "value": Column(pa.binary(), "binary"),
        "topic": Column(pa.string(), "string"),
        "partition": Column(pa.int32(), "int"),
        "offset": Column(pa.int64(), "bigint"),
        "timestamp": Column(pa.timestamp("us", tz="UTC"), "timestamp"),
        "timestampType": Column(pa.int32(), "int"),
        "headers": Column(
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            "array<struct<key:string,value:binary>>",
        ),
    }
)


def ddl(names: Iterable[str]) -> str:
    """Return the columns as Spark's schema text.

    >>> ddl(["offset", "value"])
    'offset bigint, value binary'
    """
    return ", ".join(f"{name} {COLUMNS[name].spark}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """Return the columns as Arrow's schema."""
    return pa.schema([(name, COLUMNS[name].arrow) for name in names])
