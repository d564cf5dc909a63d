"""Declares the settings of quotas."""

from __future__ import annotations

from ottla.core.settings import INT_MAX, Section, Type, setting


class QuotaConfig(Section):
    """Holds the windows that rates are measured over."""

    window_num: int = setting(
        "quota.window.num", default=11, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of windows that the rates of clients are measured over, the present one among them.",
    )  # fmt: skip
    window_seconds: int = setting(
        "quota.window.size.seconds", default=1, kind=Type.INT, unit="seconds", at_least=1, at_most=INT_MAX // 1000,
        doc="Length of such a window. No quota of request time, and no rate of connections, lets a client wait longer "
        "at a time.",
    )  # fmt: skip
    controller_window_num: int = setting(
        "controller.quota.window.num", default=11, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of windows whose controller mutations a client may make at once (KIP-599).",
    )  # fmt: skip
    controller_window_seconds: int = setting(
        "controller.quota.window.size.seconds", default=1, kind=Type.INT, unit="seconds", at_least=1,
        at_most=INT_MAX // 1000, doc="Length of such a window.",
    )  # fmt: skip
