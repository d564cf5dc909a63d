"""Answers a request element by element: topics, partitions, groups, resources.

A handler says what its elements are and how one is answered, and nothing of slices:

    def answer(request: Request, body: ListOffsetsRequest, view: ClusterView) -> InParts[ListOffsetsResponse]:
        response = ListOffsetsResponse()
        return InParts(response, Each(body.topics, one_topic, into=response.topics))

`one(request, element, view)` answers one element, or returns `InParts` in its turn where the answer has a list of its
own (the partitions of a topic). The loop here is the only one: it passes every element the same snapshot of the
cluster, drops elements named twice (`key`), collects the answers (`into`), and lets the event loop turn when a slice of
work is spent. A coroutine function uses this loop by `await collect(request, each)`;
where each element has to wait, `await collect_awaited(request, elements, one)` is the same for a coroutine function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from ottla.broker.requests.request import Request
from ottla.core.slices import WorkSlice
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.compiled_codec import Slices

ElementT = TypeVar("ElementT")
AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT")


class Each(Generic[ElementT, AnswerT]):
    """Elements, and how each of them is answered: `one` may leave an element out by None.

    - `into`: the list that gets the answers; without it they are not kept (a pass that only counts).
    - `key`: elements with equal keys are one: the last of them, in the place of the first.
    - `work`: the units of work of one element (core/slices.py), besides those of the parts of its answer; a function
      where that depends on the element.
    """

    __slots__ = ("elements", "into", "key", "one", "work")

    def __init__(
        self,
        elements: Iterable[ElementT],
        one: Callable[[Request, ElementT, ClusterView], AnswerT | InParts[AnswerT] | None],
        *,
        into: list[AnswerT] | None = None,
        key: Callable[[ElementT], Hashable] | None = None,
        work: int | Callable[[ElementT], int] = 1,
    ) -> None:
        self.elements = elements
        self.one = one
        self.into = into
        self.key = key
        self.work = work


class InParts(Generic[ResponseT]):
    """An answer that is complete once each of its parts is: they are done one after the other."""

    __slots__ = ("answer", "parts", "view")

    def __init__(self, answer: ResponseT, *parts: Each[Any, Any]) -> None:
        self.answer = answer
        self.parts = parts
        self.view: ClusterView | None = None  # the snapshot for all parts: set where the handler is called


def complete(request: Request, in_parts: InParts[ResponseT]) -> Slices[ResponseT]:
    """Answer the elements of all parts in slices of work; returns the answer."""
    assert in_parts.view is not None, "the kind of handler has given the snapshot"
    for part in in_parts.parts:
        yield from _answer_each(request, part, in_parts.view)
    return in_parts.answer


async def collect(request: Request, each: Each[Any, AnswerT], view: ClusterView | None = None) -> list[AnswerT]:
    """Answer the elements from a snapshot, the present one by default; returns the answers."""
    services = request.services
    if each.into is None:
        each.into = []
    await services.slices.run(_answer_each(request, each, services.cluster.current if view is None else view))
    return each.into


async def collect_awaited(
    request: Request,
    elements: Iterable[ElementT],
    one: Callable[[Request, ElementT, ClusterView], Awaitable[AnswerT | InParts[AnswerT]]],
    view: ClusterView | None = None,
    *,
    key: Callable[[ElementT], Hashable] | None = None,
    work: int | Callable[[ElementT], int] = 1,
    together: int = 0,
) -> list[AnswerT]:
    """Answer each element by a coroutine function, from a snapshot, the present one by default; returns the answers.

    They wait one after the other; with `together`, elements of so many units of work wait for the same write.
    """
    services = request.services
    slices, view = services.slices, services.cluster.current if view is None else view
    if key is not None:
        elements = await slices.run(_without_repeats(elements, key, slices))
    answers: list[AnswerT] = []
    waiting: list[ElementT] = []
    begun = 0
    for element in elements:
        units = work if isinstance(work, int) else work(element)
        waiting.append(element)
        begun += units
        if begun >= together:
            answers += await _answer_together(request, waiting, one, view)
            waiting, begun = [], 0
        if slices.spend(units):
            await slices.yield_to_loop()
    if waiting:
        answers += await _answer_together(request, waiting, one, view)
    return answers


async def _answer_together(
    request: Request,
    elements: list[ElementT],
    one: Callable[[Request, ElementT, ClusterView], Awaitable[AnswerT | InParts[AnswerT]]],
    view: ClusterView,
) -> list[AnswerT]:
    if len(elements) == 1:  # without a task
        answers: list[Any] = [await _answer_awaited(request, elements[0], one, view)]
    else:
        answers = await asyncio.gather(*[_answer_awaited(request, each, one, view) for each in elements])
    return [answer for answer in answers if answer is not None]


async def _answer_awaited(
    request: Request,
    element: ElementT,
    one: Callable[[Request, ElementT, ClusterView], Awaitable[AnswerT | InParts[AnswerT]]],
    view: ClusterView,
) -> Any:
    answer = await one(request, element, view)
    if not isinstance(answer, InParts):
        return answer
    answer.view = view
    return await request.services.slices.run(complete(request, answer))


def _answer_each(request: Request, each: Each[Any, Any], view: ClusterView) -> Slices[None]:
    slices, one, into, work = request.services.slices, each.one, each.into, each.work
    elements: Iterable[Any] = each.elements
    if each.key is not None:
        elements = yield from _without_repeats(each.elements, each.key, slices)
    for element in elements:
        answer = one(request, element, view)
        if isinstance(answer, InParts):
            for part in answer.parts:
                yield from _answer_each(request, part, view)
            answer = answer.answer
        if into is not None and answer is not None:
            into.append(answer)
        if slices.spend(work if isinstance(work, int) else work(element)):
            yield


def _without_repeats(
    elements: Iterable[ElementT], key: Callable[[ElementT], Hashable], slices: WorkSlice
) -> Slices[Iterable[ElementT]]:
    once: dict[Hashable, ElementT] = {}
    for element in elements:
        once[key(element)] = element
        if slices.spend():
            yield
    return once.values()


def repeated(
    elements: Iterable[ElementT], twice: set[ElementT], seen: set[ElementT] | None = None
) -> Each[ElementT, None]:
    """Find the elements that occur more than once: a part before the one that answers. `seen`: of other parts."""
    once = set() if seen is None else seen

    def count(_request: Request, element: ElementT, _view: ClusterView) -> None:
        (twice if element in once else once).add(element)

    return Each(elements, count)
