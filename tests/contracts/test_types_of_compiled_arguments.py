"""What is decoded has the types that are declared: compiled modules check them where they read it, plain ones do not.

mypy takes the word of the function that decodes, whose source is `Any`: bytes of a peer, JSON in a znode, a
configuration file. Calls with such a value are reported (`tools/mypy_plugin.py`); what is in it is tried here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.config import SECTIONS
from ottla.core.errors import InvalidConfig
from ottla.core.settings import InvalidSettings, Setting, SettingText, Type, load, settings_of
from ottla.metadata_store import znodes
from ottla.storage.config import LogConfig, topic_config, topic_settings
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.codec import decode_request, decode_response, encode_request, encode_response, shape_class
from tests.properties.shapes import in_version, shapes
from tests.support.examples import examples
from tests.support.run_time_types import mismatches

# ---- Settings

_TEXTS = {
    Type.BOOLEAN: ("true", "False"),
    Type.INT: ("7", "+7", "-1", "007"),
    Type.SHORT: ("7", "1"),
    Type.LONG: ("7", "-1", "9223372036854775807"),
    Type.DOUBLE: ("0.5", "1", "1e-1"),
    Type.LIST: ("", "a", "a, b"),
}
SETTINGS = [
    pytest.param(cls, name, spec, id=f"{section}.{name}")
    for section, (_, cls) in SECTIONS.items()
    for name, spec in settings_of(cls).items()
]


def _texts(spec: Setting) -> tuple[str, ...]:
    return spec.choices or _TEXTS.get(spec.kind, ("text", "7", ""))


def _accepted(section: type[Any], spec: Setting) -> Iterator[Any]:
    """Yield the section as each text that is valid for the setting makes it, under each of its names."""
    for key in (spec.key, *spec.synonyms):
        for text in _texts(spec):
            with suppress(InvalidSettings):
                yield load(section, {key: SettingText(text, "test")})


@pytest.mark.parametrize(("section", "name", "spec"), SETTINGS)
def test_a_setting_has_its_declared_type_by_default_and_from_every_valid_text(
    section: type[Any], name: str, spec: Setting
) -> None:
    declared = get_type_hints(section)[name]

    values = [getattr(each, name) for each in (section(), *_accepted(section, spec))]

    assert not [wrong for value in values for wrong in mismatches(value, declared, name)]


@pytest.mark.parametrize("key", topic_settings())
def test_a_setting_of_a_topic_has_its_declared_type_from_every_valid_text(key: str) -> None:
    hints = get_type_hints(LogConfig)
    found = []
    for text in _texts(topic_settings()[key].spec):
        with suppress(InvalidConfig):
            found.append(topic_config(LogConfig(), {key: text}))

    names = settings_of(LogConfig)
    assert not [w for each in found for name in names for w in mismatches(getattr(each, name), hints[name], name)]


# ---- Messages

APIS = [key for key, info in API_INFO.items() if find_spec(f"ottla.wire.generated.{info.name}")]


@functools.cache
def _drawn(key: ApiKey, kind: str) -> st.SearchStrategy[Any]:
    return shapes(shape_class(key, kind))


@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name)
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_decoded_messages_have_the_declared_types_in_every_version(key: ApiKey, data: st.DataObject) -> None:
    info = API_INFO[key]
    version = data.draw(st.integers(info.min_version, info.max_version))
    request = in_version(data.draw(_drawn(key, "Request")), version)
    response = in_version(data.draw(_drawn(key, "Response")), version)

    read = decode_request(key, version, encode_request(key, version, request))
    answer = decode_response(key, version, encode_response(key, version, response))

    assert not list(mismatches(read, type(request), "request"))
    assert not list(mismatches(answer, type(response), "response"))


# ---- Nodes of the metadata store

NODES: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "broker": (
        functools.partial(znodes.decode_broker, 1),
        {
            "version": 5,
            "host": "h",
            "port": 9092,
            "timestamp": "7",
            "rack": "r",
            "endpoints": ["PLAINTEXT://h:9092"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "OTHER": "SSL"},
            "shutting_down": True,
            "cordoned": True,
        },
    ),
    "assignment": (
        functools.partial(znodes.decode_assignment, "web"),
        {
            "version": 3,
            "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ",
            "partitions": {"0": [1, 2]},
            "adding_replicas": {"0": [2]},
            "removing_replicas": {"0": [1]},
        },
    ),
    "state": (
        functools.partial(znodes.decode_state, "web", 0),
        {
            "version": 1,
            "leader": 1,
            "leader_epoch": 3,
            "isr": [1, 2],
            "controller_epoch": 4,
            "leader_recovery_state": 1,
            "elr": [3],
            "last_known_elr": [3],
            "last_unclean_epoch": 2,
        },
    ),
    "config": (functools.partial(znodes.decode_config, "/config/topics/web"), {"version": 1, "config": {"a": "b"}}),
    "cluster id": (znodes.decode_cluster_id, {"version": "1", "id": "x"}),
    "controller": (znodes.decode_controller, {"version": 1, "brokerid": 1, "timestamp": "5"}),
    "producer ids": (
        znodes.decode_producer_id_block,
        {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"},
    ),
    "log directories": (functools.partial(znodes.decode_log_dirs, 1), {"version": 1, "directories": {"a": "b"}}),
    "replica report": (
        functools.partial(znodes.decode_replica_report, 1),
        {"version": 1, "is_clean": True, "suspects": {"web": [0]}, "offline": {"web": [1]}, "impaired": {}},
    ),
    "import": (znodes.decode_kafka_import, {"version": 1, "trace": ["00000000000000000000.log", 5], "pinned": ["web"]}),
    "handled brokers": (znodes.decode_handled_brokers, {"version": 1, "epochs": {"1": 7}}),
    "reassignment": (
        znodes.decode_reassign_partitions,
        {"version": 1, "partitions": [{"topic": "web", "partition": 0, "replicas": [1, 2]}]},
    ),
    "preferred election": (
        znodes.decode_preferred_replica_election,
        {"version": 1, "partitions": [{"topic": "web", "partition": 0}]},
    ),
    "deleted topic": (functools.partial(znodes.decode_deleted_topic, "/x"), {"topic": "web", "brokers": [1]}),
}
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.0,
    1.5,
    2**70,
    "",
    "7",
    "x",
    "é",
    [],
    [None],
    [1.0],
    {},
    {"0": None},
    {"x": [1]},
)


def _altered(document: Any) -> Iterator[Any]:
    """Yield the document with each odd value in the place of each of its parts, and without each part."""
    yield from ODD
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for at, part in list(items) if isinstance(document, dict | list) else ():
        copy = document.copy()
        del copy[at]
        yield copy
        for other in _altered(part) if isinstance(part, dict | list) else ODD:
            copy = document.copy()
            copy[at] = other
            yield copy


@pytest.mark.parametrize("kind", NODES)
def test_a_node_is_malformed_or_has_the_declared_types(kind: str) -> None:
    decode, document = NODES[kind]
    declared = get_type_hints(getattr(decode, "func", decode))["return"]
    assert not list(mismatches(decode(json.dumps(document).encode()), declared, kind))

    wrong = []
    for altered in _altered(document):
        try:
            value = decode(json.dumps(altered).encode())
        except znodes.MalformedNode:
            continue
        wrong += [f"{each} from {json.dumps(altered)}" for each in mismatches(value, declared, kind)]

    assert not wrong
