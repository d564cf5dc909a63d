"""Declares how records change the rows of a table: by which key, and whether former versions of a row stay.

A row is identified by its *identity*: bytes made of the record's key, or of the fields that are the key. Rows are
partitioned by a number made of it, the bucket, so that a change of few keys rewrites the files of their buckets only.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import reasons_where
from ottla.pipeline.lake.lake_table import LakeTable, TableMismatch
from ottla.pipeline.topic_reader import TIME

BUCKET = "key_bucket"
KEY = "key"
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
DELETED = "_ottla_deleted"
"""A column of change files alone: whether the record deletes its key."""
BUCKETS = 16
BUCKETS_MAX = 1024
NO_KEY = "the record has no key"
NO_KEY_TYPE = "a key is made of texts, whole numbers, decimals, dates, times or booleans"
_PROPERTY = "ottla.changes"
_COLON, _NOTHING = pa.scalar(":", pa.large_string()), pa.scalar("", pa.large_string())


class LoadMode(StrEnum):
    """Names what a load does with the rows that a table has."""

    APPEND = "append"
    UPSERT = "upsert"
    HISTORY = "history"


class Envelope(StrEnum):
    """Names what is around the row in a record's value."""

    NONE = "none"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """The rule by which records change rows."""

    history: bool = False
    """Whether former versions of a row stay, with the times between which they were valid."""
    key_fields: tuple[str, ...] = ()
    """The fields that are the key; none: the record's key."""
    buckets: int = BUCKETS
    envelope: Envelope = Envelope.NONE

    @property
    def columns(self) -> pa.Schema:
        """Return the columns that a table has besides those of a load that appends; `keep` has the record's key."""
        return pa.schema([pa.field(BUCKET, pa.int32()), *self.version_columns])

    @property
    def version_columns(self) -> list[pa.Field]:
        """Return the columns of a version's validity, where former versions stay."""
        if not self.history:
            return []
        return [pa.field(VALID_FROM, TIME), pa.field(VALID_TO, TIME), pa.field(IS_CURRENT, pa.bool_())]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Return the columns that the table is partitioned by. Rows that are never changed again are kept apart."""
        return (IS_CURRENT, BUCKET) if self.history else (BUCKET,)

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """Return the columns that an identity is made of."""
        return self.key_fields or (KEY,)

    def identities(self, rows: pa.Table) -> pa.Array:
        """Return the identity of each row; null where a part of the key is missing."""
        if not self.key_fields:
            return _one_array(rows[KEY]).cast(pa.large_binary())
        parts = [_one_array(rows[name]).cast(pa.large_string()) for name in self.key_fields]
        if len(parts) == 1:
            return parts[0].cast(pa.large_binary())
        sized = [pc.binary_join_element_wise(pc.binary_length(p).cast(pa.large_string()), p, _COLON) for p in parts]
        return pc.binary_join_element_wise(*sized, _NOTHING).cast(pa.large_binary())

    def bucket_numbers(self, identities: pa.Array) -> pa.Array:
        """Return the bucket of each identity, as `crc32(key) % buckets` of Spark's SQL.

        >>> ChangeRule(buckets=16).bucket_numbers(pa.array([b"a", b"b"], pa.large_binary())).to_pylist()
        [3, 9]
        """
        crc32, buckets = zlib.crc32, self.buckets
        return pa.array([crc32(identity) % buckets for identity in identities.to_pylist()], pa.int32())

    def key_faults(self, keys: pa.Array, rows: pa.Table) -> pa.Array | None:
        """Return by record why it has no identity; None if all have one. `keys` are the records' own keys."""
        if not self.key_fields:
            return _where(pc.is_null(keys), NO_KEY)
        faults: list[pa.Array | None] = []
        for name in self.key_fields:
            if name not in rows.column_names:
                faults.append(pa.repeat(f"the record has no field {name}, which is its key", len(rows)))
            elif not _is_key_type(kind := rows.schema.field(name).type):
                faults.append(_where(pc.is_valid(rows[name]), f"field {name} is {kind}; {NO_KEY_TYPE}"))
                faults.append(_where(pc.is_null(rows[name]), f"field {name}, the record's key, is null"))
            else:
                faults.append(_where(pc.is_null(rows[name]), f"field {name}, the record's key, is null"))
        given = [fault for fault in faults if fault is not None]
        return pc.coalesce(*given) if given else None


def keep_rule(table: LakeTable, rule: ChangeRule) -> None:
    """Keep the rule with the table. Raises TableMismatch if the table has rows by another rule.

    Rows in the buckets of another rule would not be found, and stay beside those that replace them.
    """
    rule_values = {name: value for name, value in asdict(rule).items() if name != "envelope"}
    text = json.dumps(rule_values | {"key_fields": list(rule.key_fields)}, sort_keys=True)
    kept = table.properties().get(_PROPERTY)
    if kept is None:
        table.set_properties({_PROPERTY: text})
    elif kept != text:
        raise TableMismatch(
            f"{table.store.url} has rows by the rule {kept}, and the load's is {text}: a table stays as it was made; "
            "load into another one"
        )


def _where(mask: Any, why: str) -> pa.Array | None:
    return _one_array(reasons_where(mask, why)) if pc.any(mask).as_py() else None


def _one_array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_key_type(kind: pa.DataType) -> bool:
    is_of = pa.types
    return bool(
        is_of.is_string(kind)
        or is_of.is_integer(kind)
        or is_of.is_decimal(kind)
        or is_of.is_date(kind)
        or is_of.is_timestamp(kind)
        or is_of.is_boolean(kind)
    )
