"""What every MetadataStore must do. One suite, run against each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.coordination.embedded import EmbeddedMetadataStore
from ottla.coordination.metadata_file import FILE_NAME
from ottla.coordination.store import (
    NO_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenAllowed,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionLost,
    StoreError,
    VersionConflict,
)

Sessions = Callable[[], MetadataStore]
"""Opens another session with the same store."""


@pytest.fixture(params=["memory", "sqlite"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Sessions:
    if request.param == "memory":
        return EmbeddedMetadataStore().session
    return EmbeddedMetadataStore.open(tmp_path / FILE_NAME).session


def run(scenario: Callable[[MetadataStore], Awaitable[Any]], sessions: Sessions) -> Any:
    async def run_scenario() -> Any:
        store = sessions()
        try:
            return await asyncio.wait_for(scenario(store), 10)
        finally:
            await store.close()

    return asyncio.run(run_scenario())


def test_what_is_created_is_read_back_at_version_0(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.commit([Create("/a", b"one")]) == [0]
        node = await store.get("/a")
        assert node is not None
        assert (node.value, node.version, node.ephemeral) == (b"one", 0, False)

    run(scenario, sessions)


def test_a_node_that_is_not_there_is_none_and_has_no_children(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.get("/nowhere") is None
        assert await store.children("/nowhere") == frozenset()

    run(scenario, sessions)


def test_of_two_writers_who_read_the_same_version_one_wins(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> list[Any]:
        await store.commit([Create("/controller", b"none")])
        rivals = (store.commit([Put("/controller", name, expected_version=0)]) for name in (b"broker 1", b"broker 2"))
        return await asyncio.gather(*rivals, return_exceptions=True)

    outcomes = run(scenario, sessions)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "list"]


def test_each_write_adds_one_to_the_version_and_the_results_say_so(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        results = await store.commit([Create("/a"), Put("/a", b"1"), Put("/a", b"2", 1), Check("/a", 2), Delete("/a")])
        assert results == [0, 1, 2, NO_VERSION, NO_VERSION]
        assert await store.get("/a") is None

    run(scenario, sessions)


@pytest.mark.parametrize(
    ("ops", "refusal", "path"),
    [
        ([Create("/a")], NodeExists, "/a"),
        ([Create("/nowhere/a")], NoSuchNode, "/nowhere"),
        ([Create("/a/alive/below")], NoChildrenAllowed, "/a/alive"),
        ([Put("/nowhere", b"")], NoSuchNode, "/nowhere"),
        ([Put("/a", b"", expected_version=7)], VersionConflict, "/a"),
        ([Delete("/nowhere")], NoSuchNode, "/nowhere"),
        ([Delete("/a/b", expected_version=7)], VersionConflict, "/a/b"),
        ([Delete("/a")], NodeHasChildren, "/a"),
        ([Check("/a", 7)], VersionConflict, "/a"),
        ([Check("/nowhere")], NoSuchNode, "/nowhere"),
    ],
)
def test_a_commit_with_one_impossible_operation_changes_nothing(
    sessions: Sessions, ops: Sequence[Op], refusal: type[StoreError], path: str
) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/a"), Create("/a/b"), Create("/a/alive", ephemeral=True)])
        await store.commit([Create("/b", b"before"), Create("/c")])

        # Harmless operations around it: they must leave no trace. None touches what the impossible one is about.
        with pytest.raises(refusal) as caught:
            await store.commit([Put("/b", b"after"), Create("/new"), Delete("/c"), *ops, Create("/newer")])

        assert caught.value.path == path
        node = await store.get("/b")
        assert node is not None
        assert (node.value, node.version) == (b"before", 0)
        assert await store.children("/") >= {"a", "b", "c"}
        assert not await store.children("/") & {"new", "newer"}
        assert await store.children("/a") == {"b", "alive"}

    run(scenario, sessions)


def test_a_parent_and_its_children_go_in_one_commit(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/a"), Create("/a/b"), Create("/a/b/c")])
        await store.commit([Delete("/a/b/c"), Delete("/a/b"), Delete("/a")])
        assert await store.children("/a") == frozenset()
        assert await store.get("/a") is None

    run(scenario, sessions)


def test_a_node_made_again_is_younger_and_starts_at_version_0(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/a"), Put("/a", b"x")])
        first = await store.get("/a")
        await store.commit([Delete("/a")])
        await store.commit([Create("/a")])
        second = await store.get("/a")
        assert first is not None
        assert second is not None
        assert second.created > first.created
        assert second.version == 0

    run(scenario, sessions)


def test_an_ephemeral_node_goes_with_its_session_and_others_see_it_go(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        other = sessions()
        await store.commit([Create("/ids")])
        await other.commit([Create("/ids/2", b"alive", ephemeral=True), Create("/kept")])
        assert await store.children("/ids") == {"2"}
        changes = store.watch("/ids")
        assert await anext(changes) == {"/ids", "/ids/2"}

        await other.close()

        assert await anext(changes) == {"/ids/2"}
        assert await store.children("/ids") == frozenset()
        assert await store.get("/kept") is not None
        await other.lost()

    run(scenario, sessions)


def test_a_session_that_is_over_refuses_everything(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        other = sessions()
        await other.close()
        await other.close()
        for attempt in (other.get("/a"), other.children("/a"), other.commit([Create("/a", ephemeral=True)])):
            with pytest.raises(SessionLost):
                await attempt
        assert await store.get("/a") is None

    run(scenario, sessions)


def test_a_watch_ends_with_its_session(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> list[frozenset[str]]:
        other = sessions()
        seen = []
        async for paths in other.watch("/"):
            seen.append(paths)
            await other.close()
        return seen

    assert len(run(scenario, sessions)) == 1


def test_a_watch_names_what_is_there_and_then_what_changed_below_its_path_only(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/a"), Create("/a/b"), Create("/ab")])
        changes = store.watch("/a")
        assert await anext(changes) == {"/a", "/a/b"}

        await store.commit([Put("/ab", b"not below"), Create("/a/c")])
        await store.commit([Put("/a/b", b"x")])

        seen: set[str] = set()
        while not {"/a/b", "/a/c"} <= seen:
            seen |= await anext(changes)
        assert "/ab" not in seen

    run(scenario, sessions)


def test_a_watcher_who_looks_late_still_learns_of_every_path_that_changed(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/t")])
        changes = store.watch("/t")
        await anext(changes)
        for number in range(20):
            await store.commit([Create(f"/t/{number}")])

        seen: set[str] = set()
        while len(seen) < 20:
            seen |= await anext(changes)
        assert seen == {f"/t/{number}" for number in range(20)}

    run(scenario, sessions)


def test_who_committed_sees_it_at_once(sessions: Sessions) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Create("/n", b"0")])
        for number in range(1, 10):
            await store.commit([Put("/n", str(number).encode())])
            node = await store.get("/n")
            assert node is not None
            assert (node.value, node.version) == (str(number).encode(), number)

    run(scenario, sessions)


def test_many_increments_by_compare_and_set_lose_none(sessions: Sessions) -> None:
    async def increment(store: MetadataStore) -> None:
        while True:
            node = await store.get("/n")
            assert node is not None
            try:
                await store.commit([Put("/n", str(int(node.value) + 1).encode(), node.version)])
            except VersionConflict:
                continue
            return

    async def scenario(store: MetadataStore) -> bytes:
        await store.commit([Create("/n", b"0")])
        await asyncio.gather(*(increment(store) for _ in range(12)))
        node = await store.get("/n")
        assert node is not None
        return node.value

    assert run(scenario, sessions) == b"12"
