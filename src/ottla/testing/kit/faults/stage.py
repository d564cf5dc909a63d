"""Passes the requests of all brokers of a kit through its faults and its history (broker/requests/stages.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.broker.requests.request import Request
from ottla.broker.requests.stages import T
from ottla.testing.kit.faults.fault import Fault, sender_of
from ottla.testing.kit.faults.history import ClientRequest, History
from ottla.testing.kit.faults.network import Network
from ottla.testing.kit.faults.requests import Call, RequestFault

FaultT = TypeVar("FaultT", bound=RequestFault)


class FaultStage:
    """`Admission` and `Accounting` of all brokers of a kit. It outlives them, so faults survive a broker's restart."""

    def __init__(self, history: History | None) -> None:
        self.history = history
        self.network = Network()
        self._faults: tuple[RequestFault, ...] = ()
        self._changing = threading.Lock()  # the loop reads the tuple without it

    # ---- For tests, in any thread

    def add(self, make: Callable[[Callable[[Fault], None]], FaultT]) -> FaultT:
        """Add a fault; `make` gets the function that removes it."""
        fault = make(self._remove)
        with self._changing:
            self._faults = (*self._faults, fault)
        return fault

    def _remove(self, fault: Fault) -> None:
        with self._changing:
            self._faults = tuple(other for other in self._faults if other is not fault)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the faults of requests and of the network."""
        return (*self._faults, *self.network.partitions)

    # ---- Admission

    def admit(self, request: Request, frame: memoryview) -> Coroutine[Any, Any, bytearray | None] | None:
        """Record a request; take it over if a fault may hit it."""
        sender = sender_of(request)
        self.network.note(request)
        recorded = None
        if self.history is not None and isinstance(sender, str):
            recorded = self.history.begin(request, frame)
        api = request.api
        if api is None or not api.first <= request.api_version <= api.last:
            return None
        faults = [fault for fault in self._faults if fault.selection.may_match(request, api.key, sender)]
        if not faults and self.network.separating(sender, request.services.node_id) is None:
            return None
        return self._take_over(request, sender, bytearray(frame), faults, recorded)

    async def _take_over(
        self,
        request: Request,
        sender: int | str,
        frame: bytearray,
        faults: list[RequestFault],
        recorded: ClientRequest | None,
    ) -> bytearray | None:
        partition = self.network.separating(sender, request.services.node_id)
        if partition is not None:
            partition.happened()
            if not await self.network.wait_until_reached(request, sender):
                return None
        assert request.api is not None

        def hit_by(fault: Fault) -> None:
            if recorded is not None:
                recorded.faults.append(fault.what)

        call = Call(request, request.api.key, frame, hit_by)
        for fault in faults:
            if not fault.is_over and not call.is_answered:
                fault.apply(call)
        return await call.run()

    # ---- Accounting

    def begin(self, request: Request, frame_bytes: int) -> None:
        """Measure nothing."""

    def pause(self, request: Request) -> None:
        """Measure nothing."""

    def throttle_time_ms(self, request: Request, record_bytes: int) -> int:
        """Return 0: no client has to wait."""
        del request, record_bytes
        return 0

    def measure(self, request: Request, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Measure nothing."""
        del request
        return work

    def forwarded(self, request: Request, answer: bytes) -> None:
        """Measure nothing."""

    def account(self, request: Request) -> None:
        """Record the response."""
        if self.history is not None:
            self.history.end(request)
