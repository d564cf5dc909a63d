"""Tables that another program changed in between: rows deleted with `deltalake` or `pyiceberg`, as for a privacy request.

`deltalake` writes Arrow's string views, for which Arrow has neither comparisons nor filters.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ottla.core.clock import SystemClock
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.audit.run import AuditInputs, audit
from ottla.pipeline.declare_deleted import declare, parse_ranges
from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_table import LakeTable, TableMismatch
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.offset_range import OffsetRange
from tests.pipeline.memory_log import Bench, MemoryTopic
from tests.support.lakes import directory_of

DAYS = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at"))
BY_FORM = RowMapping(JsonObjects(), TimeRule(TimeFrom.FIELD, field="at", form="%d/%b/%Y"))


def value(number: int, *, at: str = "2015-05-17", **changed: Any) -> bytes:
    row = {"at": at, "user": f"u{number % 3}", "n": number, "tags": ["t", None], "who": {"parts": ["a"]}}
    return json.dumps(row | changed).encode()


@pytest.fixture(params=list(TableFormat))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    values: list[bytes | None] = [*(value(n) for n in range(9)), *(value(n, at="17/May/2015") for n in range(9, 15))]
    made = Bench(tmp_path, MemoryTopic({0: values}), DAYS, table_format=request.param)
    made.load()
    assert (len(made.rows()), len(made.quarantined_files())) == (9, 6)
    return made


def delete(table: LakeTable, delta_condition: str, iceberg_condition: str = "") -> None:
    """Delete rows as a program that does not know the pipeline would."""
    if isinstance(table, IcebergLakeTable):
        with table._table() as found:
            found.delete(iceberg_condition or delta_condition.replace(" = ", " == "))
    else:
        assert DeltaTable(directory_of(table)).delete(delta_condition)["num_deleted_rows"]
        assert any("string_view" in str(_written_schema(path)) for path in table.paths())


def _written_schema(path: str) -> pa.Schema:
    """The Arrow schema of a file's writer; PyArrow before 21 reads its string views as strings."""
    written = (pq.read_metadata(path).metadata or {}).get(b"ARROW:schema")
    return None if written is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written)))


def delete_for_privacy(bench: Bench) -> None:
    """Offsets 1, 4 and 7 of the table, and offset 10 of the quarantine."""
    delete(bench.table, "user = 'u1'")
    delete(bench.quarantine, '"offset" = 10')
    assert sorted(bench.rows()) == [0, 2, 3, 5, 6, 8]
    assert sorted(bench.quarantined_files()) == [9, 11, 12, 13, 14]


def missing(bench: Bench) -> list[int]:
    return [offset for fault in audited(bench).faults for offset in range(fault.first_offset, fault.end_offset)]


def audited(bench: Bench) -> TopicAudit:
    return audit(
        AuditInputs("web", bench.topic.bounds(), False, bench.topic, bench.table, bench.quarantine), (), now_ms=1 << 40
    )


def test_a_load_and_the_audit_go_on_after_rows_were_deleted(bench: Bench) -> None:
    delete_for_privacy(bench)
    bench.topic.values[0] += [value(n) for n in range(15, 20)]
    assert bench.load().rows == 5
    assert missing(bench) == [1, 4, 7, 10]


def test_a_backfill_replaces_rows_of_a_file_that_another_program_wrote(bench: Bench) -> None:
    delete_for_privacy(bench)
    bench.backfill({0: 2}, {0: 12})
    assert sorted(bench.rows()) == [0, *range(2, 9)]
    assert sorted(bench.quarantined_files()) == [9, 10, 11, 12, 13, 14]


def test_a_replay_moves_rows_out_of_a_quarantine_that_another_program_wrote(bench: Bench) -> None:
    delete_for_privacy(bench)
    other = Bench(directory_of(bench.table).parent, bench.topic, BY_FORM, table_format=_format_of(bench))
    assert other.replay().rows == 5
    assert sorted(bench.rows()) == [0, 2, 3, 5, 6, 8, 9, 11, 12, 13, 14]
    assert bench.quarantined_files() == []


def test_compaction_and_type_promotion_keep_every_value(bench: Bench) -> None:
    delete_for_privacy(bench)
    whole = '"offset", "user", n::double, tags, who'
    before = sorted(bench.rows(whole))
    bench.topic.values[0] += [value(15, n=1.5)]
    bench.load()
    compact(bench.table, "compact")
    assert sorted(bench.rows(whole, '"offset" < 15')) == before
    assert {str(pq.read_schema(path).field("user").type) for path in bench.table.paths()} == {"string"}


def test_a_file_whose_writer_did_not_count_its_rows_is_compacted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MemoryTopic({0: [value(n) for n in range(4)]}), DAYS)
    bench.load(most=2)
    bench.load(most=2)
    log = directory_of(bench.table) / "_delta_log"
    for entry in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        entry.write_text("\n".join(json.dumps(action) for action in actions))
    assert compact(bench.table, "compact").rows == 4
    assert sorted(bench.rows()) == [0, 1, 2, 3]


def test_no_backfill_and_no_replay_brings_rows_again_that_were_declared_deleted(bench: Bench) -> None:
    delete_for_privacy(bench)
    ranges = parse_ranges(["0:1", "0:4", "0:7", "0:10-11"])
    declare(bench.table, "web", ranges, reason="privacy", clock=SystemClock())
    found = audited(bench)
    assert (found.balanced, found.total.deleted) == (True, 4), "offset 11 is in the quarantine"
    bench.backfill({0: 0}, {0: 12})
    assert sorted(bench.rows()) == [0, 2, 3, 5, 6, 8]
    assert sorted(bench.quarantined_files()) == [9, 12, 13, 14]
    other = Bench(directory_of(bench.table).parent, bench.topic, BY_FORM, table_format=_format_of(bench))
    declare(bench.table, "web", parse_ranges(["0:14"]), reason="privacy", clock=SystemClock())
    assert other.replay().rows == 3
    assert sorted(bench.quarantined_files()) == [14]
    assert audited(bench).balanced


def test_positions_outlast_the_snapshots_that_brought_them(bench: Bench) -> None:
    """The newest snapshot of Iceberg is another program's, and those before it expire."""
    delete_for_privacy(bench)
    for table in (bench.table, bench.quarantine):
        table.expire(SystemClock().wall_ms() + 1000)
        assert table.positions("web", [0]) == {0: OffsetRange(0, 0, 15)}
    assert bench.load().did_nothing


def test_a_delta_table_with_deletion_vectors_is_refused_with_what_to_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MemoryTopic({0: [value(0)]}), DAYS)
    bench.load()
    log = directory_of(bench.table) / "_delta_log"
    number = DeltaTable(directory_of(bench.table)).version() + 1
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    entries = [{"commitInfo": {"timestamp": 1}}, protocol]
    (log / f"{number:020}.json").write_text("\n".join(json.dumps(entry) for entry in entries))
    with pytest.raises(TableMismatch, match=r"deletion vectors.*REORG TABLE"):
        bench.load()
    with pytest.raises(TableMismatch, match="deletion vectors"):
        audited(bench)


def test_views_inside_of_lists_and_structs_become_the_tables_types(tmp_path: Path) -> None:
    from ottla.pipeline.lake.schema import conform

    views = pa.array([{"a": ["x", None]}, None], pa.struct([("a", pa.list_(pa.string_view()))]))
    wanted = pa.struct([("a", pa.list_(pa.string()))])
    found, misfits = conform(views, wanted)
    assert (found.type, found.to_pylist(), misfits) == (wanted, [{"a": ["x", None]}, None], None)


def test_an_iceberg_table_with_delete_files_is_refused_with_what_to_do() -> None:
    from pyiceberg.manifest import ManifestContent

    from ottla.pipeline.lake.iceberg import _data_files

    manifest = SimpleNamespace(content=ManifestContent.DELETES, fetch_manifest_entry=lambda *_, **__: ["a delete file"])
    snapshot: Any = SimpleNamespace(manifests=lambda _: [manifest])
    table: Any = SimpleNamespace(io=None, name=lambda: ("lake", "events"))
    with pytest.raises(TableMismatch, match=r"events: another writer deleted rows by delete files.*rewrite_data_files"):
        _data_files(table, snapshot)


def _format_of(bench: Bench) -> TableFormat:
    return TableFormat.ICEBERG if isinstance(bench.table, IcebergLakeTable) else TableFormat.DELTA
