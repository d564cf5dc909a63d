"""Frames: cut from a stream however it is chopped, and refused before memory is spent."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.wire.frame import FrameRefused, frame_length, length_prefix
from tests.support.framing import FrameDecoder, framed

FRAMES = [b"", b"a", b"bc" * 30, bytes(range(256)), b"last"]
STREAM = b"".join(framed(frame) for frame in FRAMES)


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_frames_are_cut_from_chunks_of_every_size(size: int) -> None:
    decoder = FrameDecoder(frame_bytes_max=1024)
    found = []
    for at in range(0, len(STREAM), size):
        decoder.receive_data(STREAM[at : at + size])
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert found == FRAMES


@given(frames=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_frames_are_cut_from_chunks_of_any_sizes(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(framed(frame[:20], frame[20:]) for frame in frames)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    decoder = FrameDecoder(frame_bytes_max=64)
    found = []
    for start, end in zip(places, [*places[1:], len(stream)], strict=True):
        decoder.receive_data(stream[start:end])
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert found == frames


@pytest.mark.parametrize("length", [1025, 2**31 - 1, -1, -(2**31)])
def test_a_length_out_of_bounds_is_refused_before_memory_is_spent(length: int) -> None:
    prefix = length_prefix(length)
    tracemalloc.start()
    try:
        with pytest.raises(FrameRefused):
            frame_length(prefix, 0, 4, frame_bytes_max=1024)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    assert frame_length(length_prefix(1024), 0, 4, frame_bytes_max=1024) == 1024


def test_half_a_length_is_not_judged() -> None:
    assert frame_length(b"\xff\xff\xff\xff", 0, 3, frame_bytes_max=1024) == -1
    assert frame_length(b"....\0\0\0\5", 4, 8, frame_bytes_max=1024) == 5
