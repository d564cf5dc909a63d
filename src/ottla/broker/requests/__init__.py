"""Serves requests: one driver for all APIs, with named stages, and the interface of handlers.

`driver.py` has the stages, `request.py` what is known of one request, `registry.py` the table of APIs, `handler.py` the
kinds of handlers, `elements.py` the loop over the elements of a request, `stages.py` and `authorization.py` what can be
plugged in.

A handler names its kind in its last line: `HANDLER = ElementWise(MESSAGES, answer)`. To write one:

1. It answers about one thing from memory: `Inline`. It has to wait for a coordinator or the controller: `Awaited`.
2. It answers about each of many things from memory: `ElementWise`. Its function makes the response without its list,
   and returns `InParts(response, Each(body.topics, one, into=response.topics))`. `one(request, element, view)` answers
   one element from the snapshot it is given, and never reads `services.cluster.current`. Where the answer has a long
   list of its own, `one` returns `InParts` in its turn; what an inner element needs of the outer one is bound by
   `partial`.
3. It must wait, and answers about many: `ElementWiseAfter`. `first` checks the elements with `collect`, waits once for
   all of them, and returns what it found; `answer` makes the response from that, as in 2. Where each element has a
   wait of its own, `Awaited` with `collect_awaited`.
4. Elements named twice: `key` where Kafka answers once; a part before the one that answers, with `repeated`, where
   Kafka refuses all of them.
5. What a client must be allowed to do: an `Access` for each, in `access=` (authorization.py). The driver asks about the
   request as a whole; the handler asks about each element, with `denies`, before it looks whether the element exists.
6. `work` is what an element costs in units of two to five microseconds. A loop that cannot be long (the settings of one
   topic) needs no `Each`; `work` covers it. No handler mentions slices otherwise.

The throttle time of a response is set by the driver; Produce and Fetch encode `pending.throttle_time_ms`.
"""
