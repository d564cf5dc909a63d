"""A connection that has not signed in survives whatever it is sent; `make fuzz-sign-in` sends millions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.sign_in import SignInTarget, conversations, framed, fuzz

INPUTS = 1500


async def test_wrong_conversations_end_in_no_error_and_hold_no_memory(tmp_path: Path) -> None:
    signed_in, refused = await fuzz(INPUTS, 1, tmp_path)
    assert signed_in + refused == INPUTS
    assert signed_in > 10 and refused > INPUTS / 2


async def _target(directory: Path) -> SignInTarget:
    return SignInTarget(directory)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with asyncio.Runner() as runner, runner.run(_target(tmp_path_factory.mktemp("fuzz"))) as target:
        steps = [step for conversation in conversations(target.issuer, target.issuer.token()) for step in conversation]
        yield lambda pieces: runner.run(target.feed(pieces)), steps


@given(data=st.data())
def test_no_bytes_before_or_during_a_sign_in_are_an_error(feed: tuple, data: st.DataObject) -> None:  # type: ignore[type-arg]
    send, steps = feed
    piece = st.one_of(st.sampled_from(steps), st.binary(max_size=80), st.binary(max_size=80).map(framed))
    send(data.draw(st.lists(piece, max_size=5)))
