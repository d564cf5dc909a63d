"""Every command of docs/pipeline.md, in order, in a shell, against a broker of the test's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.memory_log import by_duckdb
from tests.support.lakes import lake_in
from tests.support.ottla_process import OttlaProcess
from tests.support.spark_java import SparkJava

GUIDE = Path(__file__).parents[2] / "docs" / "pipeline.md"
DEFAULT_BROKER = "127.0.0.1:9092"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
STARTS = "ottla server"
FOR_A_WHILE = "timeout --signal TERM 40 "
SHORTER = "timeout --signal TERM 12 "
"""A reader's JVM starts first."""
ENDED_BY_TIMEOUT = 124


def test_the_guide_has_commands_and_names_their_directory() -> None:
    assert len(BLOCKS) > 8
    assert sum(STARTS in block for block in BLOCKS) == 1
    assert sum(block.startswith(FOR_A_WHILE) for block in BLOCKS) == 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("drivers")
def test_every_command_of_the_guide_works(tmp_path: Path, ottla_server: OttlaProcess, spark_java: SparkJava) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OTTLA_BROKERS": ottla_server.bootstrap,
        "HOME": str(tmp_path),
    }
    said = ""
    for block in BLOCKS:
        if STARTS in block:
            continue  # installing, and the broker that runs already
        script = block.replace(DEFAULT_BROKER, ottla_server.bootstrap).replace(FOR_A_WHILE, SHORTER)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = {0, ENDED_BY_TIMEOUT} if script.startswith(SHORTER) else {0}
        assert done.returncode in expected, (block, done.stdout, done.stderr)
        spark_java.end_context()  # of one that was stopped before it had begun
        said += done.stdout
    assert "orders -> orders: 9 rows, 1 quarantined, 2 files" in said
    assert "quarantined: not a JSON object" in said
    lake = lake_in(tmp_path / "lake")
    both = [by_duckdb(table, 'partition, "offset"') for table in (lake.table("orders"), lake.quarantine("orders"))]
    assert Counter(both[0] + both[1]).most_common(1)[0][1] == 1
    assert len(both[0] + both[1]) == 9, "of ten, one was deleted and declared"
    raw = lake_in(tmp_path / "lake2", TableFormat.ICEBERG).table("everything")
    assert len(by_duckdb(raw, "value")) == 10
