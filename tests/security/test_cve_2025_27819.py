"""CVE-2025-27819: AlterConfigs could give a listener the login module JndiLoginModule, or LdapLoginModule, and run code.

Kafka forbids these two by name. Here a module's name is compared and never loaded, so each unknown one is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.settings import AlterConfigOpType, ConfigResourceType
from ottla.security.sasl import jaas
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.sasl_broker import sasl_broker

MODULES = (
    "com.sun.security.auth.module.JndiLoginModule",
    "com.sun.security.auth.module.LdapLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
)
NAMES = [
    f"{listener}{mechanism}sasl.jaas.config"
    for listener in ("", "listener.name.sasl_plaintext.", "listener.name.new.")
    for mechanism in ("", "plain.", "scram-sha-256.")
]


@pytest.mark.parametrize("module", MODULES)
async def test_no_request_gives_a_listener_a_login_module(tmp_path: Path, module: str) -> None:
    async with sasl_broker(tmp_path, {"password.encoder.secret": "so that it could be stored"}) as broker:
        handlers = broker.cluster.handlers(1)
        for node in ("1", ""):
            for name in NAMES:
                text = f'{module} required user.provider.url="ldap://127.0.0.1:1/x";'
                change = AlterableConfig(name=name, config_operation=AlterConfigOpType.SET, value=text)
                resource = AlterConfigsResource(
                    resource_type=ConfigResourceType.BROKER, resource_name=node, configs=[change]
                )
                request = IncrementalAlterConfigsRequest(resources=[resource])
                (answer,) = (await handlers.call("incremental_alter_configs", 1, request)).responses
                assert answer.error_code == ErrorCode.INVALID_REQUEST, name
        assert not handlers.services.cluster.current.broker_configs


def test_the_parser_of_login_modules_can_load_nothing() -> None:
    source = Path(jaas.__file__).read_text()
    assert not [word for word in ("importlib", "__import__", "getattr", "eval(", "exec(") if word in source]
