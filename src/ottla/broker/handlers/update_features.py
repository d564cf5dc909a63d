"""UpdateFeatures (key 57), versions 0 to 2.

What it does
  Validates the levels that are wanted. The levels in use belong to the version of Ottla
  (broker/handler_parts/features.py), so a request for the level in use succeeds, and any other is refused with
  INVALID_UPDATE_VERSION and the levels served.

What it does not do
  A level cannot be changed. `metadata.version` and `kraft.version` are unknown: there is no Raft quorum.

Versions
  v1   upgrade types instead of permission to downgrade; validation alone (KIP-778)
  v2   one error for all features (KIP-1022)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ottla.broker.handler_parts.features import FEATURES, Feature
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.update_features import (
    MESSAGES,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_UPGRADE_TYPES_SINCE, _NO_RESULTS_SINCE = 1, 2


def answer(request: Request, body: UpdateFeaturesRequest, _view: ClusterView) -> InParts[UpdateFeaturesResponse]:
    """Validate each update; the first that is refused refuses all."""
    levels = {feature.name: feature for feature in FEATURES}
    response = UpdateFeaturesResponse(error_message=None)
    parts: list[Each[FeatureUpdateKey, UpdatableFeatureResult]] = [
        Each(body.feature_updates, partial(_validate, levels, response))
    ]
    if request.api_version < _NO_RESULTS_SINCE:
        parts.append(Each(body.feature_updates, partial(_accepted, response), into=response.results))
    return InParts(response, *parts)


def _validate(
    levels: Mapping[str, Feature],
    response: UpdateFeaturesResponse,
    request: Request,
    update: FeatureUpdateKey,
    _view: ClusterView,
) -> None:
    if response.error_code:
        return
    upgrade_type = update.upgrade_type
    if request.api_version < _UPGRADE_TYPES_SINCE:
        upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    refusal = _refusal(levels.get(update.feature), update, upgrade_type)
    if refusal:
        response.error_code = ErrorCode.INVALID_UPDATE_VERSION
        response.error_message = (
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {update.max_version_level} for feature {update.feature}. {refusal}"
        )


def _accepted(
    response: UpdateFeaturesResponse, _request: Request, update: FeatureUpdateKey, _view: ClusterView
) -> UpdatableFeatureResult | None:
    if response.error_code:
        return None
    return UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)  # as Kafka says it


def _refusal(feature: Feature | None, update: FeatureUpdateKey, upgrade_type: int) -> str:
    """Return why a feature cannot have a level; empty if it has it."""
    level = update.max_version_level
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return "The cluster does not have this feature."
    if not feature.min_level <= level <= feature.max_level:
        return f"The cluster supports versions {feature.min_level} to {feature.max_level}."
    if level < feature.level and upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level != feature.level:
        return f"Version {feature.level} belongs to this version of Ottla and cannot be changed."
    return ""


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.ALTER),))
