"""Scripts about rights that change while a broker does not learn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.acl_admin import create_acls, delete_acls
from ottla.client.connection import Connection
from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from tests.simulation import access
from tests.simulation.cluster import Machine
from tests.simulation.history import Use
from tests.simulation.run import Run
from tests.simulation.script_steps import send

T = TypeVar("T")


class Visitor:
    """A client of one broker that the script has ask."""

    def __init__(self, a_run: Run, machine: Machine) -> None:
        self._run, self._machine = a_run, machine
        self._context = a_run.cluster.client_process(f"visitor-{machine.node_id}")
        self._connection: Connection | None = None

    async def may_describe(self) -> bool | None:
        """Ask the broker; None if it serves this client no more."""
        began = self._run.loop.time()
        answer: bool | None = await self._run.loop.create_task(self._ask(), context=self._context)
        if answer is not None:
            use = Use(began, self._run.loop.time(), self._machine.node_id, access.VISITOR, 1, answer)
            self._run.cluster.history.uses.append(use)
        return answer

    async def signs_in(self, user: str) -> bool:
        """Return whether the broker lets a user sign in."""
        is_signed_in: bool = await self._run.loop.create_task(self._sign_in(user), context=self._context)
        return is_signed_in

    async def _sign_in(self, user: str) -> bool:
        try:
            connection = await access.signed_in(self._machine.address, access.security(user))
        except (KafkaError, CannotConnect, OSError):
            return False
        await connection.close()
        return True

    async def _ask(self) -> bool | None:
        try:
            if self._connection is None:
                how = access.security(access.VISITOR)
                self._connection = await access.signed_in(self._machine.address, how)
            return await access.may_describe(self._connection)
        except (KafkaError, CannotConnect, OSError):
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
            return None

    async def until(self, expected: bool | None, what: str, *, seconds: float = 10.0) -> float:
        """Ask until the answer is this; returns when it was. Raises AssertionError."""
        deadline = self._run.loop.time() + seconds
        while await self.may_describe() is not expected:
            assert self._run.loop.time() < deadline, f"not within {seconds:g} s: {what}"
            await asyncio.sleep(0.05)
        self._run.note(what)
        return self._run.loop.time()


async def as_admin(a_run: Run, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Do something as the administrator."""

    async def connected() -> T:
        return await work(await a_run.cluster.patient_client(access.ADMIN))

    done: T = await a_run.loop.create_task(connected(), context=a_run.cluster.client_process(access.ADMIN))
    return done


async def _lonely(a_run: Run) -> tuple[Machine, Visitor, Visitor]:
    """Return a broker that is not the controller, a visitor of another one and one of its own, who are allowed."""
    assert await send(a_run, "p1", 5) == 5
    _, other, lonely = a_run.roles()
    visitors = Visitor(a_run, other), Visitor(a_run, lonely)
    await as_admin(a_run, lambda client: create_acls(client, [access.ALLOWED]))
    for visitor in visitors:
        await visitor.until(True, "it is allowed")
    return lonely, *visitors


async def _take_the_right(a_run: Run, other: Visitor, lonely: Visitor) -> float:
    """Return when the right was taken. The broker that does not know of it allows it as before."""
    await as_admin(a_run, lambda client: delete_acls(client, [access.ALLOWED]))
    await other.until(False, "another broker denies it")
    assert await lonely.may_describe(), "the script is about a broker that does not know"
    return a_run.cluster.history.changes[-1].time_s


async def right_is_taken_from_a_broker_cut_off(a_run: Run) -> None:
    """A broker cut off from the store allows what it did for a while, and then serves the client no more."""
    machine, other, lonely = await _lonely(a_run)
    machine.link.cut()
    taken_s = await _take_the_right(a_run, other, lonely)
    assert await lonely.until(None, "the broker that does not know serves it no more") - taken_s < access.AGE_S + 1
    await asyncio.sleep(2 * access.AGE_S)
    assert await lonely.may_describe() is None, "nor does it let it sign in"
    assert not await lonely.signs_in(access.ADMIN), "nor anybody: the password may be another one now"
    machine.link.join()
    await lonely.until(False, "it knows again")


async def right_is_taken_while_the_feed_lags(a_run: Run) -> None:
    """A broker whose part of the store lags learns of it by asking the store for all that was committed."""
    machine, other, lonely = await _lonely(a_run)
    machine.link.hold()
    taken_s = await _take_the_right(a_run, other, lonely)
    assert await lonely.until(False, "it has learned of it") - taken_s < access.AGE_S
    machine.link.release()
