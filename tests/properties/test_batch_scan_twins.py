"""The walk a recovery runs: plain and compiled alike, against reading batch by batch, and against a replay of all."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _batch_scan
from ottla.records.batch import BatchHeader, split, stamp
from ottla.records.batch_faults import is_checksum_right
from ottla.records.batch_reader import BatchLocation
from ottla.records.batch_scan import BatchScan, IndexEntry
from ottla.storage.log.producer_replay import replay_batch
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.producer_snapshots import encode_snapshot
from ottla.storage.state.producer_state_manager import ProducerStateManager
from tests.fuzz.harnesses import mutated
from tests.support.compiled_loops import compiled_loop
from tests.support.examples import examples
from tests.support.storage import NOW_MS, batch, marker

BASE, INTERVAL, OFFSET_MAX = 1000, 300, 1000 + (1 << 31) - 1
some = settings(max_examples=examples(50), deadline=None)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_loop(_batch_scan)


def log_of(source: random.Random, count: int, *, gaps: bool = False) -> bytes:
    """Batches of several producers, some in transactions, over a few leader epochs."""
    out, offset, epoch = bytearray(), BASE, 0
    sequences = dict.fromkeys(range(4), 0)
    for _ in range(count):
        epoch += source.random() < 0.1
        offset += source.randrange(3) if gaps else 0
        producer = source.randrange(-1, 5)
        values = [source.randbytes(source.randrange(90)) for _ in range(source.randrange(1, 4))]
        timestamp = NOW_MS + source.randrange(-500, 500)
        if producer == 4 and source.random() < 0.3:
            made = marker(4, 0, commit=source.random() < 0.5)
        elif producer == 4:
            made = batch(*values, timestamp_ms=timestamp, producer_id=4, epoch=0, sequence=0, transactional=True)
        elif producer >= 0:
            made = batch(
                *values, timestamp_ms=timestamp, producer_id=producer, epoch=epoch, sequence=sequences[producer]
            )
            sequences[producer] += len(values)
        else:
            made = batch(*values, timestamp_ms=timestamp)
        stamp(made, 0, base_offset=offset, leader_epoch=epoch)
        offset = BatchHeader(made).last_offset + 1
        out += made
    return bytes(out)


def walked(data: bytes, *, chunk_bytes: int = 1 << 20, gaps: bool = False) -> BatchScan:
    """The walk over a file with this content, read in pieces of this size (or one batch, if that is larger)."""
    walk = BatchScan(BASE, epoch=-1, gaps=gaps, offset_max=OFFSET_MAX, interval_bytes=INTERVAL)
    while walk.position < len(data):
        for size in (chunk_bytes, len(data)):
            taken = walk.take(memoryview(data)[walk.position : walk.position + size], len(data))
            if taken or walk.ended:
                break
        if not taken:
            break
    return walk


def read_one_by_one(data: bytes, *, gaps: bool) -> tuple[int, int, list[IndexEntry], list[tuple[int, int]], list[int]]:
    """The same by the plainest rules: where the good prefix ends, its end offset, what indexes and epochs hold."""
    at, offset, epoch, since, greatest, greatest_offset = 0, BASE, -1, 0, -1, BASE
    entries, epochs, producers = [], [], []
    while at + 61 <= len(data):
        header = BatchHeader(data, at)
        whole = header.magic == 2 and 61 <= header.size_bytes <= len(data) - at and header.last_offset_delta >= 0
        in_order = header.base_offset >= offset if gaps else header.base_offset == offset
        if not (whole and in_order and header.partition_leader_epoch >= epoch and header.last_offset <= OFFSET_MAX):
            break
        if not is_checksum_right(data[at : at + header.size_bytes], header):
            break
        if header.partition_leader_epoch > epoch:
            epoch = header.partition_leader_epoch
            epochs.append((epoch, header.base_offset))
        if header.max_timestamp > greatest:
            greatest, greatest_offset = header.max_timestamp, header.last_offset
        if since > INTERVAL:
            entries.append(IndexEntry(header.last_offset, at, greatest, greatest_offset))
            since = 0
        since += header.size_bytes
        if header.producer_id >= 0:
            producers.append(at)
        offset, at = header.last_offset + 1, at + header.size_bytes
    return at, offset, entries, epochs, producers


def with_an_older_epoch(data: bytes, source: random.Random) -> bytes:
    """One batch is of the epoch before: what a lost truncation left there is whole as it may be."""
    changed, places = bytearray(data), [at for at, _ in split(data)]
    at = source.choice(places)
    header = BatchHeader(changed, at)
    stamp(changed, at, base_offset=header.base_offset, leader_epoch=header.partition_leader_epoch - 1)
    return bytes(changed)


@some
@given(
    seed=st.integers(0, 2**32),
    chunk_bytes=st.integers(61, 2000),
    gaps=st.booleans(),
    spoilt=st.booleans(),
    older=st.booleans(),
)
def test_the_walk_finds_what_reading_batch_by_batch_finds(
    seed: int, chunk_bytes: int, gaps: bool, spoilt: bool, older: bool
) -> None:
    source = random.Random(seed)
    data = log_of(source, 30, gaps=gaps)
    if older:
        data = with_an_older_epoch(data, source)
    if spoilt:
        data = mutated(data, source)
    walk = walked(data, chunk_bytes=chunk_bytes, gaps=gaps)
    end, offset, entries, epochs, _ = read_one_by_one(data, gaps=gaps)
    assert (walk.position, walk.next_offset, walk.entries, walk.epochs) == (end, offset, entries, epochs)


@some
@given(seed=st.integers(0, 2**32), flip=st.integers(0, 7), gaps=st.booleans())
def test_both_twins_walk_alike_over_good_and_corrupt_bytes(
    compiled: ModuleType, seed: int, flip: int, gaps: bool
) -> None:
    source = random.Random(seed)
    data = bytearray(log_of(source, 12, gaps=gaps))
    if flip:
        at = source.choice([0, 8, 12, 16, 17, 21, 23, 35, 43]) + source.randrange(4)
        data[at] ^= source.choice([1, 0x80, 0xFF])
    if flip > 5:
        data = bytearray(mutated(bytes(data), source))

    def run(module: ModuleType) -> Any:
        found: list[list[Any]] = [[], [], []]
        view = memoryview(bytes(data))
        result = module.check_into(
            view, 0, len(data), BASE, -1, gaps, OFFSET_MAX, INTERVAL, 0, -1, BASE, crc32c, *found
        )
        return result, found

    assert run(compiled) == run(_batch_scan)


@some
@given(seed=st.integers(0, 2**32), count=st.integers(0, 120))
def test_the_batches_it_keeps_give_the_same_producer_state_as_all_batches(seed: int, count: int) -> None:
    data = log_of(random.Random(seed), count)
    walk = walked(data, chunk_bytes=700)
    kept, every = walk.producers.positions(), read_one_by_one(data, gaps=False)[4]
    assert set(kept) <= set(every)
    assert replayed(data, kept) == replayed(data, every)


class OneSegment:
    """What a replay reads markers from."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def file(self) -> Any:
        return self

    def read_at(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def replayed(data: bytes, positions: list[int]) -> tuple[bytes, list[AbortedTransaction]]:
    producers = ProducerStateManager()
    aborted = [
        replay_batch(producers, OneSegment(data), BatchLocation(at, BatchHeader(data, at)), now_ms=NOW_MS)
        for at in positions
    ]
    return encode_snapshot(producers), [each for each in aborted if each is not None]


def test_a_producer_of_many_batches_costs_a_few_places() -> None:
    data = bytearray()
    for at in range(500):
        made = batch(b"x", producer_id=7, epoch=0, sequence=at)
        stamp(made, 0, base_offset=BASE + at, leader_epoch=0)
        data += made
    assert len(walked(bytes(data)).producers.positions()) == 6
