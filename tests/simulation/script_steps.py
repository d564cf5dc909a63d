"""Sends records in a script, and waits for what becomes of them."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.producer import Producer, ProducerOptions
from ottla.testing.sim_loop import SimClock
from tests.simulation.history import Outcome, Value
from tests.simulation.run import Run


async def send(a_run: Run, name: str, count: int, *, within_s: float = 10.0) -> int:
    """Send records as a new producer; returns how many were acknowledged in time."""
    partition = a_run.workload.partitions[0]

    async def work() -> list[Any]:
        client = await a_run.cluster.patient_client(name, retry_s=within_s)
        options = ProducerOptions(delivery_timeout_s=within_s, linger_s=0.001, auto_create=False)
        producer = Producer(client, clock=SimClock(), options=options)
        return [await a_run.workload._send(producer, partition, Value(name, at)) for at in range(count)]

    sends = await a_run.loop.create_task(work(), context=a_run.cluster.client_process(name))
    deadline = a_run.loop.time() + within_s
    while a_run.loop.time() < deadline and any(each.outcome is Outcome.UNKNOWN for each in sends):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return sum(each.outcome is Outcome.OK for each in sends)
