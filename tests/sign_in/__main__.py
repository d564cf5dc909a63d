"""Writes outcomes.toml, by asking a real Kafka."""

from __future__ import annotations

from tests.sign_in.recorded import record

record()
