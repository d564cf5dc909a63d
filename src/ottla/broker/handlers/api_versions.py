"""ApiVersions (key 18), versions 0 to 5.

What it does
  Lists every API of broker/requests/registry.py with its versions, and remembers the name and version of the client's
  software. It is answered once before a client signs in, and then as often as it is asked. Features (KIP-584) are
  listed from v3 on. The APIs of clients' metrics (KIP-714) are listed if a setting asks for them.

What it does not do
  A feature's level cannot be changed: the broker serves the one of its version.

Versions
  v0   also answers versions that are not served, with UNSUPPORTED_VERSION and the whole list (KIP-511)
  v3   flexible encoding, but the answer's header stays version 0; software name and version in the request
  v4   a feature's minimum may be 0 (KAFKA-17011)
  v5   the client may name the cluster and the node that it expects: REBOOTSTRAP_REQUIRED from any other (KIP-1242)
"""

from __future__ import annotations

import re

from ottla.broker.handler_parts.features import EPOCH, FEATURES
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.registry import APIS, TELEMETRY
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.security.sasl.sign_in import SignIn
from ottla.wire.apis import ApiKey
from ottla.wire.generated.api_versions import (
    MESSAGES,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE, _FIRST_WITH_LEVEL_0, _FIRST_WITH_NODE = 3, 4, 5
_NO_NODE = -1


def handle(request: Request, body: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return the APIs and versions that this broker serves."""
    if request.api_version >= _FIRST_WITH_NODE and (body.cluster_id is None) != (body.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.api_version >= _FIRST_WITH_SOFTWARE:
        name, version = body.client_software_name, body.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.connection.software = (name, version)
    if request.api_version >= _FIRST_WITH_NODE and body.cluster_id is not None:
        services = request.services
        if (body.cluster_id, body.node_id) != (services.cluster.current.cluster_id, services.node_id):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    if isinstance(sign_in := request.connection.authentication, SignIn):
        sign_in.versions_sent()
    has_telemetry = request.services.config.metrics.client_metrics
    # Clients of v3 do not understand a minimum of 0 (KAFKA-17011).
    lowest = 0 if request.api_version >= _FIRST_WITH_LEVEL_0 else 1
    return ApiVersionsResponse(
        api_keys=[api for api in _served() if api.api_key not in TELEMETRY or has_telemetry],
        supported_features=[
            SupportedFeatureKey(name=one.name, min_version=max(one.min_level, lowest), max_version=one.max_level)
            for one in FEATURES
        ],
        finalized_features_epoch=EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=one.name, max_version_level=one.level, min_version_level=one.level)
            for one in FEATURES
        ],
    )


def unsupported_version() -> ApiVersionsResponse:
    """Answer an unsupported version with the supported versions of this API, as Kafka does (KIP-511)."""
    own = [served for served in _served() if served.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


def _served() -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=api.key,
            min_version=api.min_version if api.advertised_min_version is None else api.advertised_min_version,
            max_version=api.max_version,
        )
        for api in APIS.values()
    ]


HANDLER = Inline(MESSAGES, handle, unsupported=unsupported_version, access=())
