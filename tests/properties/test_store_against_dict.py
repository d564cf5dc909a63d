"""The embedded store against the simplest thing that could be right: a dictionary, one operation after the other."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.metadata_store.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    Op,
    Put,
    StoreError,
    parent_of,
    sequential_path,
)

PATHS = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/b/x"]
path = st.sampled_from(PATHS)
version = st.sampled_from([ANY_VERSION, 0, 1, 2])
op: st.SearchStrategy[Op] = st.one_of(
    st.builds(Create, path, st.binary(max_size=3), st.booleans(), st.booleans()),
    st.builds(Put, path, st.binary(max_size=3), version),
    st.builds(Delete, path, version),
    st.builds(Check, path, version),
)
REOPEN = "reopen"
steps = st.lists(st.one_of(st.lists(op, max_size=5), st.just(REOPEN)), max_size=25)

Model = dict[str, Node]


def do(model: Model, ops: list[Op], commit: int) -> Model | None:
    """The model after a commit, or None if it is refused. Sequential nodes are numbered from the commit's number on."""
    new, numbers = dict(model), itertools.count(commit)
    for each in ops:
        node, name = new.get(each.path), each.path
        expected = getattr(each, "expected_version", ANY_VERSION)
        if not isinstance(each, Create) and (node is None or expected not in {ANY_VERSION, node.version}):
            return None
        match each:
            case Create():
                if each.sequential:
                    name = sequential_path(each.path, next(numbers))
                    node = new.get(name)
                parent = new.get(parent_of(each.path)) if parent_of(each.path) != "/" else Node(b"", 0, 0, False)
                if node is not None or parent is None or parent.ephemeral:
                    return None
                new[name] = Node(each.value, 0, commit, each.ephemeral)
            case Put() if node is not None:
                new[each.path] = node._replace(value=each.value, version=node.version + 1)
            case Delete():
                if any(parent_of(other) == each.path for other in new):
                    return None
                del new[each.path]
    return new


@settings(deadline=None)
@given(steps)
def test_the_store_is_a_dictionary_whose_commits_are_whole_and_last(scenario: list[list[Op] | str]) -> None:
    async def run_scenario(directory: Path) -> None:
        store, model, commits = EmbeddedMetadataStore.open(directory / FILE_NAME).session(), Model(), 0
        for step in scenario:
            if isinstance(step, str):
                await store.close()
                store = EmbeddedMetadataStore.open(directory / FILE_NAME).session()
                model = {path: node for path, node in model.items() if not node.ephemeral}
            else:
                after = do(model, step, commits + 1)
                try:
                    await store.commit(step)
                    accepted = True
                except StoreError:
                    accepted = False
                assert accepted == (after is not None)
                if after is not None:
                    changes = any(not isinstance(each, Check) for each in step)
                    sequential = sum(isinstance(each, Create) and each.sequential for each in step)
                    commits, model = commits + max(changes, sequential), after
            for where in {*PATHS, *model}:
                assert await store.get(where) == model.get(where)
                below = {other.rpartition("/")[2] for other in model if parent_of(other) == where}
                assert await store.children(where) == below
        await store.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run_scenario(Path(directory)))
