"""ACLs by the admin client of confluent-kafka (librdkafka), unmodified."""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"
# confluent-kafka ships types for its core only; its admin client is untyped and re-exports without saying so.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.security.config import AUTHORIZERS
from tests.support.ottla_process import OttlaProcess

PATIENCE_S = 30
pytestmark = pytest.mark.external


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminClient]:
    options = [f"-oauthorizer.class.name={AUTHORIZERS[1]}", "-osuper.users=User:ANONYMOUS"]
    server = OttlaProcess(tmp_path / "ottla", options=options).start()
    yield AdminClient({"bootstrap.servers": server.bootstrap})
    server.stop()
    server.assert_log_is_clean()


def binding(name: str = "web", kind: Any = ResourcePatternType.LITERAL, host: str = "*") -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, kind, "User:alice", host, AclOperation.READ, AclPermissionType.ALLOW)


def chosen(name: str | None = None, kind: Any = ResourcePatternType.ANY) -> AclBindingFilter:
    return AclBindingFilter(ResourceType.ANY, name, kind, None, None, AclOperation.ANY, AclPermissionType.ANY)


def test_acls_are_created_described_and_deleted(admin: AdminClient) -> None:
    bindings = [binding(), binding("we", ResourcePatternType.PREFIXED, "10.0.0.0/8"), binding("a/b")]

    for created in admin.create_acls(bindings).values():
        created.result(PATIENCE_S)
    assert set(admin.describe_acls(chosen()).result(PATIENCE_S)) == set(bindings)
    assert admin.describe_acls(chosen("web", ResourcePatternType.MATCH)).result(PATIENCE_S) == bindings[:2]
    by_filter = admin.delete_acls([chosen("web", ResourcePatternType.LITERAL)])
    assert [deleted.result(PATIENCE_S) for deleted in by_filter.values()] == [bindings[:1]]
    assert set(admin.describe_acls(chosen()).result(PATIENCE_S)) == set(bindings[1:])


def test_an_acl_that_cannot_be_is_refused_beside_one_that_can(admin: AdminClient) -> None:
    wrong, right = binding(host="10.0.0.0/33"), binding()
    created = admin.create_acls([wrong, right])

    created[right].result(PATIENCE_S)
    with pytest.raises(KafkaException) as error:
        created[wrong].result(PATIENCE_S)
    assert error.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert "not in range [0,32]" in error.value.args[0].str()
