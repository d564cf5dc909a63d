"""A broker on a real socket whose responses a test defines."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_request, encode_response
from ottla.wire.generated.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.generated.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.headers import parse_request_header, response_header

Answer = Callable[[Any], Any]
SILENCE, HANG_UP = object(), object()
SERVED = {
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.METADATA: (0, 12),
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
}


class ScriptedBroker:
    """`answers[key]` returns the response to a request, or SILENCE or HANG_UP; `seen` has the requests."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[ApiKey, int, Any]] = []
        self.connections = 0
        self.answers: dict[ApiKey, Answer] = {ApiKey.API_VERSIONS: self.versions, ApiKey.METADATA: self.metadata}
        self.partitions = 1
        self.api_versions_known = 4

    def requests(self, key: ApiKey) -> list[Any]:
        return [request for seen, _, request in self.seen if seen == key]

    def versions(self, _request: Any) -> ApiVersionsResponse:
        ranges = [ApiVersion(api_key=k, min_version=low, max_version=high) for k, (low, high) in SERVED.items()]
        return ApiVersionsResponse(api_keys=ranges)

    def metadata(self, request: Any) -> MetadataResponse:
        parts = [MetadataResponsePartition(partition_index=n, leader_id=1) for n in range(self.partitions)]
        topics = [MetadataResponseTopic(name=topic.name, partitions=parts) for topic in request.topics or []]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            cluster_id="scripted",
            controller_id=1,
            topics=topics,
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                answer = self._answer(await reader.readexactly(length))
                if answer is HANG_UP:
                    return
                if isinstance(answer, bytes):
                    writer.write(struct.pack(">i", len(answer)) + answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, frame: bytes) -> object:
        header = parse_request_header(frame)
        key, version = ApiKey(header[0]), header[1]
        if key == ApiKey.API_VERSIONS and version > self.api_versions_known:
            refused = ApiVersionsResponse(error_code=35, api_keys=self.versions(None).api_keys)
            refused.api_keys[0].max_version = self.api_versions_known
            self.seen.append((key, version, None))
            return response_header(key, 0, header[2]) + encode_response(key, 0, refused)
        request = decode_request(key, version, frame, header[4])
        self.seen.append((key, version, request))
        answer = self.answers[key](request)
        if answer is SILENCE or answer is HANG_UP:
            return answer
        return response_header(key, version, header[2]) + encode_response(key, version, answer)


@asynccontextmanager
async def scripted_broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()


def once(*answers: Any, then: Answer) -> Answer:
    """These answers, one a request, and afterwards whatever `then` says."""
    left = list(answers)
    return lambda request: left.pop(0) if left else then(request)
