"""Plants the bug that OTTLA_PLANTED_BUG names: `pytest -p tests.simulation.planting_plugin`."""

from __future__ import annotations

import os

from tests.simulation.planted_bugs import plant

if bug := os.environ.get("OTTLA_PLANTED_BUG"):
    plant(bug)
