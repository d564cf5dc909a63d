"""docs/control-api.json: the control API of `ottla server --memory` in OpenAPI, as the server describes it."""

from __future__ import annotations

import json

from ottla.testing.kit.control_api.openapi import document

PAGE = "docs/control-api.json"


def generate() -> dict[str, str]:
    """Return the page as it should be, by its path in the repository."""
    return {PAGE: json.dumps(document(), indent=2) + "\n"}
