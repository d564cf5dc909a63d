"""The first users of a cluster come of a file or of the command line, and keep what they have afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.startup.initial_users import add_users, read_users
from ottla.core.settings import InvalidSettings
from ottla.metadata_store import znodes
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import MetadataStore
from tests.support.sasl_broker import sasl_broker


async def settings(store: MetadataStore, name: str) -> dict[str, str]:
    path = znodes.config_path(znodes.USERS_KIND, znodes.sanitized(name))
    node = await store.get(path)
    assert node is not None
    return znodes.decode_config(path, node.value)


async def test_a_user_gets_a_credential_of_each_mechanism_once() -> None:
    store = EmbeddedMetadataStore().session()
    await add_users(store, {"a b": "secret"})
    first = await settings(store, "a b")
    assert set(first) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    await add_users(store, {"a b": "another", "c": "secret"})
    assert await settings(store, "a b") == first
    assert await settings(store, "c") != first


async def test_users_of_a_file_can_sign_in_once_the_broker_serves(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# first\nadmin = with space = and é\n\n", encoding="utf-8")
    async with (
        sasl_broker(tmp_path / "data", {"ottla.initial.users.file": str(file)}) as broker,
        await broker.client() as client,
    ):
        assert (await client.sign_in("admin", " with space = and é"))["error_code"] == 0


def test_a_file_that_is_wrong_prevents_the_start_and_an_absent_one_does_not(tmp_path: Path) -> None:
    assert read_users("") == read_users(str(tmp_path / "absent")) == {}
    wrong = tmp_path / "wrong"
    wrong.write_text("admin=x\nno password\n")
    with pytest.raises(InvalidSettings, match="line 2 is not NAME=PASSWORD"):
        read_users(str(wrong))
