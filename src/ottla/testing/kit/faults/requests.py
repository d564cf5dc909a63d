"""Implements the faults of requests: errors, delays, lost responses, closed connections, and a test's own responses.

Each request that some fault may hit is a `Call`. Every fault in turn changes what will be done with it, in the order in
which the test has made them: so one may fail a partition of a request, another one a second partition, and a third one
delay the response.
"""

from __future__ import annotations

import asyncio
import copy
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

from ottla.broker.requests.inner_response import InnerResponse
from ottla.broker.requests.request import Request
from ottla.core.error_codes import ErrorCode
from ottla.testing.kit.faults.elements import METADATA_TOPICS, Elements, elements_of, list_shape, merge, split
from ottla.testing.kit.faults.fault import Fault, RequestView, Selection, decode_body, view_of
from ottla.testing.kit.faults.responses import error_response, response_of
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import parse_response_header, response_header

_LENGTH = struct.Struct(">i")
_ALL_TOPICS_VERSION = 0
"""The version of Metadata in which no topics are all topics, and not none."""

_TOPIC_IDS_VERSION = 10
"""The version of Metadata since which topics have ids."""


class Call:
    """One request, and what the faults have made of it."""

    def __init__(self, request: Request, key: ApiKey, frame: bytearray, hit_by: Callable[[Fault], None]) -> None:
        self.request, self.key, self._frame = request, key, frame
        self._outer, self._hit_by = request.pending, hit_by
        self._is_changed = False
        self._errors: list[Any] = []  # responses with errors, about the elements that are not in the body any more
        self.response: Any | None = None  # instead of the handler's
        self.before_s = self.after_s = 0.0
        self.is_lost = self.is_handled = False
        self.is_closed = False

    @cached_property
    def body(self) -> Any:
        """The body of the request, or what the faults have left of it; None if that is nothing."""
        return decode_body(self.request, self.key, self._frame)

    @property
    def is_answered(self) -> bool:
        """Return whether the handler has nothing to do."""
        return self.response is not None or (self._is_changed and self.body is None)

    @property
    def elements(self) -> Elements | None:
        """Return where the elements of the request are."""
        return elements_of(self.key, self.request.api_version)

    def hit(self, fault: Fault) -> None:
        """Count a fault that changes something."""
        self._hit_by(fault)
        fault.happened()

    def fail(self, errors: Any, rest: Any | None) -> None:
        """Answer some elements by errors, and let the rest be handled."""
        self._errors.append(errors)
        self._is_changed, self.body = True, rest

    def refuse_version(self) -> bool:
        """Answer ApiVersions as if its version were unknown: in version 0, with the versions that are known."""
        api = self.request.api
        assert api is not None
        assert api.unsupported is not None, "it is ApiVersions"
        self.response, self.request.api_version = api.unsupported(), 0
        return True

    # ---- What is done with it

    async def run(self) -> bytearray | None:
        """Do what the faults ask for; returns the frame that is to be handled, if there is one."""
        if self.is_lost and not self.is_handled:
            if self.is_closed:
                self._outer.abandon()
            return None
        if self.before_s:
            await asyncio.sleep(self.before_s)
        if self.is_answered:
            self._respond_with(self.response)
            return None
        if self._errors or self.is_lost or self.after_s:
            self.request.pending = InnerResponse(self._outer, self._handled, self._handled_without_response)
        if not self._is_changed:
            return self._frame
        head = self._frame[: self.request.header[4]]
        return head + codec.encode_request(self.key, self.request.api_version, self.body)

    def _respond_with(self, response: Any | None) -> None:
        if self._has_no_response:
            self._handled_without_response()
            return
        answers = [*([] if response is None else [response]), *self._errors]
        for errors in answers[1:]:
            elements = self.elements
            assert elements is not None, "only elements fail separately"
            merge(elements.level, answers[0], errors)
        version = self.request.api_version
        head = response_header(self.key, version, self.request.header[2])
        encoded = head + codec.encode_response(self.key, version, answers[0])
        self._deliver(_LENGTH.pack(len(encoded)) + encoded)

    @property
    def _has_no_response(self) -> bool:
        return self.key is ApiKey.PRODUCE and self._acks == 0

    @cached_property
    def _acks(self) -> int:
        acks: int = decode_body(self.request, self.key, self._frame).acks
        return acks

    def _handled(self, frame: bytes) -> None:
        if not self._errors:
            self._deliver(frame)
            return
        version = self.request.api_version
        _, body_at = parse_response_header(memoryview(frame)[_LENGTH.size :], self.key, version)
        self._respond_with(codec.decode_response(self.key, version, frame, _LENGTH.size + body_at))

    def _handled_without_response(self) -> None:
        """End a request with acks=0: an error closes the connection, as in Kafka, so that the producer notices."""
        self.request.pending = self._outer  # `Accounting` looks at the response there
        if self._errors or (self.is_lost and self.is_closed):
            self._outer.abandon()
        else:
            self._outer.send(())

    def _deliver(self, frame: bytes) -> None:
        if self.after_s:
            after_s, self.after_s = self.after_s, 0.0
            asyncio.get_running_loop().call_later(after_s, self._deliver, frame)
            return
        self.request.pending = self._outer
        if not self.is_lost:
            self._outer.send((frame,))
        elif self.is_closed:
            self._outer.abandon()


class RequestFault(Fault, ABC):
    """A fault of requests: of so many of them, or of all until it is removed."""

    def __init__(self, what: str, selection: Selection, *, times: int | None, end: Callable[[Fault], None]) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times={times}: a fault happens once at least")
        super().__init__(f"{what} of {selection}", end=end)
        self.selection, self.times = selection, times

    @property
    def is_over(self) -> bool:
        """Return whether it has happened as often as it was to happen."""
        return self.times is not None and self.count >= self.times

    def apply(self, call: Call) -> None:
        """Change what is done with a request, if it is one of these. A test's function that raises ends the fault."""
        try:
            if self._is_chosen(call) and self._change(call):
                call.hit(self)
        except MalformedRequest:
            return  # the driver refuses it
        except Exception as error:  # noqa: BLE001 - it is of a function of the test, which gets it
            self.fail(error)
            self.times = 0

    def _is_chosen(self, call: Call) -> bool:
        where = self.selection.where
        return where is None or bool(where(view_of(call.request, call.key, call.body)))

    @abstractmethod
    def _change(self, call: Call) -> bool:
        """Change what is done with a request; returns whether anything was changed."""

    def _is_hit(self, call: Call) -> bool:
        return not self.selection.has_elements or self._split(call)[0] is not None

    def _split(self, call: Call) -> tuple[Any | None, Any | None]:
        """Return the request with the elements that are hit, and with the rest."""
        if not self.selection.has_elements:
            return call.body, None
        elements = call.elements
        if elements is None:
            return None, call.body
        request = call.request
        return split(elements.level, call.body, lambda topic, number: self.selection.selects(request, topic, number))


class Failing(RequestFault):
    """Requests, or elements of them, are answered by an error and not handled."""

    def __init__(
        self, error: ErrorCode, selection: Selection, *, times: int | None, end: Callable[[Fault], None]
    ) -> None:
        super().__init__(error.name, selection, times=times, end=end)
        self._error = error

    def _change(self, call: Call) -> bool:
        key, version = call.key, call.request.api_version
        if key is ApiKey.API_VERSIONS and self._error is ErrorCode.UNSUPPORTED_VERSION:
            return call.refuse_version()
        if key is ApiKey.METADATA:
            hit, rest = self._split_metadata(call)
        else:
            hit, rest = self._split(call)
        if hit is None:
            return False
        errors = error_response(key, version, hit, self._error, is_whole=not self.selection.has_elements)
        if errors is None:
            return False
        if rest is not None and key is ApiKey.ADD_PARTITIONS_TO_TXN:  # all partitions or none
            others = error_response(key, version, rest, ErrorCode.OPERATION_NOT_ATTEMPTED, is_whole=False)
            call.fail(others, None)
            rest = None
        call.fail(errors, rest)
        return True

    def _split_metadata(self, call: Call) -> tuple[Any | None, Any | None]:
        """Divide a request that may name no topics, which means all. Its response has the brokers in any case."""
        body, version = call.body, call.request.api_version
        topics = call.request.services.cluster.current.topics
        named = copy.copy(body)
        if body.topics is None or (not body.topics and version == _ALL_TOPICS_VERSION):
            named.topics = [list_shape(type(body), "topics")(name=name) for name in topics]
        else:
            named.topics = [copy.copy(topic) for topic in body.topics]
        hit, rest = split(
            METADATA_TOPICS, named, lambda topic, number: self.selection.selects(call.request, topic, number)
        )
        for topic in [] if hit is None or version < _TOPIC_IDS_VERSION else hit.topics:
            if topic.name in topics:
                topic.topic_id = topics[topic.name].topic_id
        if not body.topics or version == _ALL_TOPICS_VERSION:
            return hit, body  # the answers with errors replace others
        if rest is None:
            rest = copy.copy(body)
            rest.topics = []
        return hit, rest


class Delaying(RequestFault):
    """Responses come later, or, without `handled`, requests are handled later."""

    def __init__(
        self, seconds: float, selection: Selection, *, handled: bool, times: int | None, end: Callable[[Fault], None]
    ) -> None:
        if seconds < 0:
            raise ValueError(f"a delay of {seconds:g} s")
        super().__init__(f"delay by {seconds * 1000:g} ms", selection, times=times, end=end)
        self._seconds, self._handled = seconds, handled

    def _change(self, call: Call) -> bool:
        if not self._is_hit(call):
            return False
        if self._handled:
            call.after_s += self._seconds
        else:
            call.before_s += self._seconds
        return True


class Losing(RequestFault):
    """Requests get no response; with `closes` the connection is closed instead. Without `handled` nothing is done."""

    def __init__(
        self, selection: Selection, *, handled: bool, closes: bool, times: int | None, end: Callable[[Fault], None]
    ) -> None:
        super().__init__("cut" if closes else "drop", selection, times=times, end=end)
        self._handled, self._closes = handled, closes

    def _change(self, call: Call) -> bool:
        if not self._is_hit(call):
            return False
        call.is_lost, call.is_handled, call.is_closed = True, self._handled, self._closes
        return True


class Answering(RequestFault):
    """Requests are answered by a function of the test."""

    def __init__(
        self,
        function: Callable[[RequestView], Any],
        selection: Selection,
        *,
        times: int | None,
        end: Callable[[Fault], None],
    ) -> None:
        super().__init__("answer", selection, times=times, end=end)
        self._function = function

    def _change(self, call: Call) -> bool:
        if not self._is_hit(call):
            return False
        given = self._function(view_of(call.request, call.key, call.body))
        if given is None:
            return False
        version = call.request.api_version
        response = response_of(call.key, version, given)
        codec.encode_response(call.key, version, response)  # raises here what cannot be encoded
        call.response = response
        return True
