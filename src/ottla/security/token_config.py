"""Declares the settings of delegation tokens (KIP-48)."""

from __future__ import annotations

from ottla.core.settings import DAY_MS, HOUR_MS, Section, Type, setting


class TokenConfig(Section):
    """Holds the key of delegation tokens, and how long they are valid. All brokers have the same values."""

    secret_key: str = setting(
        "delegation.token.secret.key", default="", kind=Type.PASSWORD, synonyms=("delegation.token.master.key",),
        doc="The key from which the secret of each delegation token is derived, the same on all brokers. Without it "
        "there are no delegation tokens. With another one all tokens are invalid.",
    )  # fmt: skip
    max_lifetime_ms: int = setting(
        "delegation.token.max.lifetime.ms", default=7 * DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="How long a delegation token is valid at most, however often it is renewed.",
    )  # fmt: skip
    expiry_time_ms: int = setting(
        "delegation.token.expiry.time.ms", default=DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="How long a delegation token is valid before it has to be renewed.",
    )  # fmt: skip
    expiry_check_interval_ms: int = setting(
        "delegation.token.expiry.check.interval.ms", default=HOUR_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="Interval at which expired tokens are removed. They are not accepted any more before that.",
    )  # fmt: skip
