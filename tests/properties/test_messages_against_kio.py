"""Compares every message of every version, both ways, against kio: an independent writer and an independent native reader."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.core.slices import WorkSlice
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from tests.properties.kio_twin import kio_bytes, kio_class, kio_entity, kio_read
from tests.properties.shapes import in_version, shapes, without_illegal_nulls
from tests.support.examples import examples
from tests.support.messages import MESSAGE_APIS

KINDS: tuple[Literal["Request", "Response"], ...] = ("Request", "Response")
ENCODE: dict[str, Any] = {"Request": codec.encode_request, "Response": codec.encode_response}
DECODE: dict[str, Any] = {"Request": codec.decode_request, "Response": codec.decode_response}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", MESSAGE_APIS, ids=lambda key: key.name.lower())
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_version_is_written_and_read_as_kio_does(
    key: ApiKey, kind: Literal["Request", "Response"], data: st.DataObject
) -> None:
    drawn = data.draw(shapes(codec.shape_class(key, kind)))
    info = MESSAGE_APIS[key]
    for version in range(info.min_version, info.max_version + 1):
        shape = without_illegal_nulls(drawn, version)
        cls = kio_class(key, version, kind)
        entity = kio_entity(cls, shape)
        encoded = ENCODE[kind](key, version, shape)
        assert encoded == kio_bytes(entity), f"version {version}"
        assert kio_read(cls, encoded) == entity, f"version {version}"
        assert DECODE[kind](key, version, encoded) == in_version(shape, version), f"version {version}"
        if kind == "Request":
            slices = codec.decode_request_slices(key, version, encoded, slices=_OneElementSlice())
            assert _result(slices) == in_version(shape, version), f"version {version} in slices"
        else:
            writing = codec.encode_response_slices(key, version, shape, slices=_OneElementSlice())
            assert _result(writing) == encoded, f"version {version} in slices"


class _OneElementSlice(WorkSlice):
    """Makes a generator yield after each element."""

    def spend(self, work: int = 1) -> bool:
        return True


def _result(slices: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value
