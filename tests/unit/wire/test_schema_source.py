"""Compares the constants of package wire with kio's schema; the broker itself never loads kio."""

from __future__ import annotations

import subprocess
import sys

import kio.schema.errors
import pytest
from kio.schema.index import api_key_map

from ottla.core.errors import ErrorCode
from ottla.wire.apis import API_INFO, NEVER, ApiKey
from tests.properties.kio_twin import kio_class
from tests.support.newer_messages import NEWER_ERRORS, schema_name_map


def test_the_table_of_apis_is_that_of_the_schema() -> None:
    assert {int(key): info.name for key, info in API_INFO.items()} == dict(api_key_map)
    for info in API_INFO.values():
        assert list(range(info.min_version, info.max_version + 1)) == sorted(schema_name_map[info.name])


@pytest.mark.parametrize("key", API_INFO, ids=lambda key: key.name.lower())
def test_flexible_versions_are_those_of_the_schema(key: ApiKey) -> None:
    info = API_INFO[key]
    for version in range(info.min_version, info.max_version + 1):
        for kind in ("Request", "Response"):
            cls = kio_class(key, version, kind)
            assert cls.__flexible__ == (version >= info.flexible_since)
            header = cls.__header_schema__.__version__
            is_exception = key is ApiKey.API_VERSIONS and kind == "Response"
            assert header == (kind == "Request") + (cls.__flexible__ and not is_exception)
    assert info.flexible_since == NEVER or info.flexible_since <= info.max_version + 1


def test_the_keys_of_removed_apis_stay_reserved() -> None:
    assert set(ApiKey) - set(API_INFO) == {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }


def test_error_codes_are_those_of_the_schema() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        code.name.upper(): code.value for code in kio.schema.errors.ErrorCode
    } | NEWER_ERRORS


def test_reading_and_writing_messages_loads_no_kio() -> None:
    program = (
        "import sys\n"
        "from ottla.wire import codec, headers, frame\n"
        "from ottla.wire.apis import ApiKey\n"
        "from ottla.wire.hot import fetch, produce\n"
        "codec.decode_request(ApiKey.METADATA, 1, bytes(4))\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('kio', 'phantom', 'hypothesis')])\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
