"""What refused batches were unpacked to is freed at once: the broker's memory stays bounded without a garbage collector."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.record_validation_queue import HELD_BYTES_MAX, THREADS
from ottla.core.error_codes import ErrorCode
from ottla.records.codecs import DECOMPRESSED_BYTES_MAX
from tests.support.batches import CODECS, Written, batch, record, with_payload
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import usage
from tests.support.wire_client import Wire

WAVES, IN_FLIGHT = 4, 5
"""Of each kind of batch: what 20 requests unpack is at least twice the budget."""
BUDGET_BYTES = HELD_BYTES_MAX + THREADS * DECOMPRESSED_BYTES_MAX
"""What record validation may hold beside the idle broker."""
MARGIN = 1.25
VERSION = 9
COMPACTED = "compacted"


class _WithoutCollector(OttlaProcess):
    """A broker in which only reference counts free memory."""

    def command(self) -> list[str]:
        program = "import gc, sys; gc.disable(); from ottla.cli.main import main; sys.exit(main())"
        options = ["server", "--port", str(self.port), "--data", str(self.data), *self.options]
        return [sys.executable, "-c", program, *options]


@pytest.fixture(params=["plain", "as built"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OttlaProcess]:
    """Plain Python keeps more in its frames than compiled code does."""
    if request.param == "plain":
        monkeypatch.setenv("OTTLA_PLAIN", "1")
    process = _WithoutCollector(tmp_path).start()
    yield process
    process.stop()
    process.assert_log_is_clean()


def refused_batches() -> Iterator[bytes]:
    """Of every codec: a bomb, garbage below the limit, a record without a key, and a payload that is cut short."""
    for codec, compress in CODECS.items():
        bomb = bytes(compress(bytes(2 * DECOMPRESSED_BYTES_MAX)))
        garbage = bytes(compress(bytes(DECOMPRESSED_BYTES_MAX - 1)))
        keyless = bytes(compress(record(Written(bytes(12 << 20), None), 0)))
        for payload, count in ((bomb, 9), (garbage, 9), (keyless, 1), (keyless[:-20], 1)):
            yield with_payload(payload, count=count, attributes=codec)


def test_refused_batches_do_not_stay_in_memory(server: OttlaProcess) -> None:
    config = [{"name": "cleanup.policy", "value": "compact"}, {"name": "max.message.bytes", "value": str(8 << 20)}]
    topic = {"name": COMPACTED, "num_partitions": 2, "replication_factor": 1, "configs": config}
    with Wire(server.port, timeout_s=60) as wire:
        assert not wire.call("create_topics", 5, topics=[topic], timeout=20_000)["topics"][0]["error_code"]
        assert not _error(wire, _sent(wire, batch(), 0))
        idle = usage(server.pid).rss_bytes
        refused = 0
        for records in refused_batches():
            for _ in range(WAVES):
                sent = [_sent(wire, records, number % 2) for number in range(IN_FLIGHT)]
                assert {_error(wire, each) for each in sent} == {ErrorCode.INVALID_RECORD}
                refused += len(sent)
        assert refused == 4 * 4 * WAVES * IN_FLIGHT
        assert not _error(wire, _sent(wire, batch(), 1)), "it still serves"
    assert usage(server.pid).peak_rss_bytes - idle < BUDGET_BYTES * MARGIN


def _sent(wire: Wire, records: bytes, partition: int) -> int:
    part = {"index": partition, "records": records}
    return wire.send(
        "produce", VERSION, acks=-1, timeout=60_000, topic_data=[{"name": COMPACTED, "partition_data": [part]}]
    )


def _error(wire: Wire, correlation_id: int) -> int:
    answer = wire.receive("produce", VERSION, correlation_id)
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code
