"""CVE-2026-111108: arrays of a request that announce many elements made the broker allocate many times what was sent."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.requests.registry import APIS
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import ELEMENTS_MAX
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header
from tests.processes.test_large_requests import MeasuredBroker
from tests.support.large_requests import exchange
from tests.support.largest_counts import Place, body, count, decoders, places
from tests.support.processes import usage
from tests.support.wire_client import Wire

LARGEST, MIB = (1 << 31) - 1, 1 << 20
ELEMENTS_REFUSED = f"more than {ELEMENTS_MAX} elements"
FILLER = bytes(64)


def refused(decode: Callable[[int, bytes], Any], place: Place, data: bytes, match: str | None = None) -> None:
    """Have it refused, in memory that does not depend on the count."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match=match):
            decode(place.version, data)
        spent = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert spent < MIB, f"{place}: {spent} bytes"


@pytest.mark.parametrize("key", APIS.keys(), ids=lambda key: key.name.lower())
def test_the_largest_count_of_each_array_of_each_version_takes_no_memory(key: ApiKey) -> None:
    for place in places(key, tags=False):
        for decode in decoders(key):
            refused(decode, place, body(place, count(place, LARGEST) + FILLER))


@pytest.mark.parametrize("key", APIS.keys(), ids=lambda key: key.name.lower())
def test_more_elements_than_a_request_may_have_are_refused_before_one_is_read(key: ApiKey) -> None:
    for place in places(key, tags=False):
        elements = place.element * (ELEMENTS_MAX + 1)
        refused(decoders(key)[0], place, body(place, count(place, ELEMENTS_MAX + 1) + elements), ELEMENTS_REFUSED)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MeasuredBroker]:
    measured = MeasuredBroker(tmp_path, is_prepared=False)
    yield measured
    measured.stop()


def requests() -> Iterator[bytes]:
    """Yield a request for each array of each version, with the largest count; of the newest with elements, too."""
    for key, api in APIS.items():
        for place in places(key, tags=False):
            header = encode_request_header(key, place.version, 7, "large")
            yield header + body(place, count(place, LARGEST) + FILLER)
            if place.version == api.max_version:
                elements = place.element * (ELEMENTS_MAX + 1)
                yield header + body(place, count(place, ELEMENTS_MAX + 1) + elements)


@pytest.mark.slow
def test_a_broker_ends_the_connections_of_such_requests_and_serves_others(broker: MeasuredBroker) -> None:
    with Wire(broker.port, timeout_s=60) as innocent:
        known = {"client_software_name": "innocent", "client_software_version": "1"}
        innocent.call("api_versions", 3, **known)
        shapes_loaded = [exchange(broker.port, frame) for frame in requests() if len(frame) < MIB]
        assert len(shapes_loaded) > 500
        before = usage(broker.process.pid).rss_bytes
        Path(f"/proc/{broker.process.pid}/clear_refs").write_text("5")
        largest = 0
        for number, frame in enumerate(requests()):
            largest = max(largest, len(frame))
            assert exchange(broker.port, frame) == -1, struct.unpack_from(">hh", frame)
            if number % 50 == 0:
                assert innocent.call("api_versions", 3, **known)["error_code"] == 0
        grown = usage(broker.process.pid).peak_rss_bytes - before
        assert grown <= 3 * largest + 16 * MIB, f"{grown / MIB:.0f} MiB"
        assert innocent.call("api_versions", 3, **known)["error_code"] == 0
    broker.longest_turn_ms()  # nothing failed unexpectedly
