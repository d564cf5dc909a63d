"""Names the formats of record values, without importing a library of any."""

from __future__ import annotations

from enum import StrEnum


class RecordFormat(StrEnum):
    """The format of a record's value."""

    JSON = "json"
    CSV = "csv"
    ACCESS_LOG = "access-log"
    TEXT = "text"
    RAW = "raw"
    AVRO = "avro"
    PROTOBUF = "protobuf"
