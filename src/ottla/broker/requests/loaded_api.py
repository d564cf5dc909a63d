"""Holds a row of the registry with its handler, imported and taken apart for the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.request_errors import ErrorPlaces, error_places
from ottla.broker.requests.authorization import Access
from ottla.net import eager_tasks
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices


class LoadedApi:
    """One API as the driver serves it. Which way its requests take is decided once, when the handler is imported."""

    __slots__ = (
        "controller_only",
        "copy_frame",
        "decode",
        "decode_slices",
        "demanded",
        "encode",
        "error_places",
        "first",
        "handle",
        "handle_long",
        "has_throttle_time",
        "is_administrative",
        "is_coroutine",
        "is_deferred",
        "is_element_wise",
        "key",
        "last",
        "name",
        "refuse",
        "request_bytes_max",
        "start",
        "unsupported",
        "unwraps",
        "waits_for_members",
    )

    def __init__(
        self,
        *,
        key: ApiKey,
        first: int,
        last: int,
        controller_only: bool,
        waits_for_members: bool,
        decode: Callable[[memoryview | bytes | bytearray, int, int], Any],
        handle: Callable[..., Any],
        handle_long: Callable[..., Any] | None = None,
        decode_slices: Callable[..., Slices[Any]] | None = None,
        encode: Callable[..., Slices[bytearray]] | None = None,
        is_deferred: bool = False,
        is_coroutine: bool = False,
        is_eager: bool = False,
        is_element_wise: bool = False,
        unwraps: bool = False,
        has_throttle_time: bool = False,
        demanded: tuple[Access, ...] = (),
        refuse: Callable[..., Any] | None = None,
        unsupported: Callable[[], Any] | None = None,
        copy_frame: Callable[[memoryview], Any] = bytes,
        request_bytes_max: int,
    ) -> None:
        self.key = key
        self.name = key.name
        self.first = first
        self.last = last
        self.controller_only = controller_only
        self.waits_for_members = waits_for_members
        self.decode = decode
        self.decode_slices = decode_slices or _not_of_this_api
        self.encode = encode or _not_of_this_api
        self.error_places: ErrorPlaces | None = None  # in its responses, since the first of them
        self.handle = handle
        self.handle_long = handle_long or handle
        self.is_deferred = is_deferred  # `handle` completes the pending response itself; `handle_long` decodes as well
        self.is_coroutine = is_coroutine  # `handle` is a coroutine function
        self.start = eager_tasks.start if is_eager else _start_task  # for its coroutine
        self.is_element_wise = is_element_wise  # it may return InParts (elements.py)
        self.is_administrative = False  # the driver sets it: its changes are recorded in the audit log
        self.unwraps = unwraps  # it may return a request that is to be served in its turn
        self.has_throttle_time = has_throttle_time
        self.demanded = demanded  # of the request as a whole
        self.refuse = refuse  # makes the response to a request that the authorizer denies as a whole
        self.unsupported = unsupported  # makes the response to an unsupported version
        self.copy_frame = copy_frame  # of a long request
        self.request_bytes_max = request_bytes_max  # a larger one is malformed

    def find_error_places(self) -> ErrorPlaces:
        """Return where errors are in a response, for the first of them."""
        places = self.error_places = error_places(self.key)
        return places


def _start_task(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
    return asyncio.get_running_loop().create_task(coroutine, name=name)


def _not_of_this_api(*_arguments: Any, **_named: Any) -> Any:
    raise AssertionError("a deferred API has codecs of its own")
