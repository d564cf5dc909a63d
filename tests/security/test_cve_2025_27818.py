"""No setting that a request can set names code, a file or a URL (CVE-2023-25194, 2025-27817, 2025-27818, 2025-27819).

In Kafka such settings loaded login modules of JNDI and LDAP, and read files through URLs. The rule is a property of the
declarations: a setting that requests can set, and whose text is free, declares that the text is a name or a pattern.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.broker.config import SECTIONS
from ottla.broker.entity_config import ClientMetricsConfig, OneGroupConfig
from ottla.broker.kafka_config import NOT_HERE
from ottla.core.errors import ErrorCode
from ottla.core.settings import Content, Setting, Type, setting, settings_of
from ottla.storage.config import topic_settings
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import alter_configs, create_topics, incremental_alter_configs
from tests.support.clusters import started_cluster

BROKER, TOPIC, GROUP, CLIENT_METRICS = 4, 2, 32, 16
OUTSIDE = re.compile(
    r"class(es)?(\.names?)?$|(location|file|path|directory|dir|dirs|url|urls|uri|command|cmd|script)$|\.handler\.|jaas"
)
"""Names that say that a setting names something outside the broker."""

EVIL = (
    "com.sun.security.auth.module.JndiLoginModule required user.provider.url=ldap://127.0.0.1:1/x;",
    "com.sun.security.auth.module.LdapLoginModule",
    "file:///etc/passwd",
    "http://127.0.0.1:1/",
    "/etc/passwd",
    "${file:/etc/passwd:root}",
)


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHandlers]:
    """One broker, whose handlers are called without a socket."""
    async with started_cluster(request, tmp_path, brokers=1, has_shared_store=False) as cluster:
        yield cluster.handlers(1)


def _settable() -> Iterator[tuple[str, Setting]]:
    """Yield every setting that a request can set, by its name there."""
    for _, section in SECTIONS.values():
        yield from ((spec.key, spec) for spec in settings_of(section).values() if spec.live)
    yield from ((name, found.spec) for name, found in topic_settings().items())
    for section in (OneGroupConfig, ClientMetricsConfig):
        yield from ((spec.key, spec) for spec in settings_of(section).values())


def _is_free_text(spec: Setting) -> bool:
    return spec.kind in (Type.STRING, Type.LIST, Type.CLASS) and not spec.choices


def test_a_free_text_that_requests_can_set_declares_that_it_names_nothing_outside_the_broker() -> None:
    settable = dict(_settable())
    assert len(settable) > 60  # or nothing was looked at
    undeclared = [name for name, spec in settable.items() if _is_free_text(spec) and spec.content is None]
    assert not undeclared, "declare `content` of these settings, or do not let requests set them"
    assert not [name for name, spec in settable.items() if spec.content is Content.OUTSIDE]


def test_no_setting_whose_name_speaks_of_code_files_or_urls_can_be_set_by_requests() -> None:
    exceptions = {"cordoned.log.dirs"}  # each is one of log.dirs
    named = [
        name
        for name, spec in _settable()
        if OUTSIDE.search(name) and (_is_free_text(spec) or spec.kind is Type.PASSWORD) and name not in exceptions
    ]
    assert not [name for name in named if "jaas" not in name]
    assert all(dict(_settable())[name].kind is Type.PASSWORD for name in named)  # a JAAS text is parsed, never loaded


def test_a_live_setting_of_something_outside_cannot_even_be_declared() -> None:
    with pytest.raises(AssertionError, match="a request must not set x"):
        setting("x", default="", kind=Type.STRING, doc="", live=True, content=Content.OUTSIDE)


def _static_names() -> list[str]:
    """Return the names that Kafka or Ottla reads at the start, alone and for a listener and a mechanism."""
    names = {spec.key for _, cls in SECTIONS.values() for spec in settings_of(cls).values() if not spec.live}
    names |= {name for name in NOT_HERE if OUTSIDE.search(name)}
    return sorted(name for name in names if OUTSIDE.search(name))


@pytest.mark.simulated_time
async def test_a_request_for_each_such_setting_is_refused_and_nothing_is_stored(broker: BrokerHandlers) -> None:
    names = _static_names()
    assert {"ssl.keystore.location", "authorizer.class.name", "log.dirs", "ottla.audit.log.path"} <= set(names)
    prefixes = ("", "listener.name.plaintext.")
    for text in EVIL:
        for name in [prefix + name for name in names for prefix in prefixes]:
            change = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=text)
            resource = incremental_alter_configs.AlterConfigsResource(
                resource_type=BROKER, resource_name="1", configs=[change]
            )
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
            (answer,) = (await broker.call("incremental_alter_configs", 1, request)).responses
            assert answer.error_code == ErrorCode.INVALID_REQUEST, (name, answer.error_message)
            old = alter_configs.AlterConfigsResource(
                resource_type=BROKER, resource_name="1", configs=[alter_configs.AlterableConfig(name=name, value=text)]
            )
            (answer_of_old,) = (
                await broker.call("alter_configs", 2, alter_configs.AlterConfigsRequest(resources=[old]))
            ).responses
            assert answer_of_old.error_code == ErrorCode.INVALID_REQUEST, (name, answer_of_old.error_message)
    assert not broker.services.cluster.current.broker_configs


@pytest.mark.simulated_time
async def test_topics_groups_and_subscriptions_have_no_such_setting(broker: BrokerHandlers) -> None:
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await broker.call("create_topics", 7, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    for kind, name in ((TOPIC, "t"), (GROUP, "g"), (CLIENT_METRICS, "c")):
        for key in ("sasl.jaas.config", "interceptor.classes", "sasl.oauthbearer.jwks.endpoint.url", "log.dirs"):
            change = incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=EVIL[0])
            resource = incremental_alter_configs.AlterConfigsResource(
                resource_type=kind, resource_name=name, configs=[change]
            )
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
            (answer,) = (await broker.call("incremental_alter_configs", 1, request)).responses
            assert answer.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST), (kind, key)
