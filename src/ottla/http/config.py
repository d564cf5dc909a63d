"""Declares the settings of the HTTP listener."""

from __future__ import annotations

from ottla.core.settings import Section, Type, setting


class HttpConfig(Section):
    """Holds where a broker serves HTTP, if it does."""

    listener: str = setting(
        "ottla.http.listener", default="", kind=Type.STRING,
        doc="Where the broker serves metrics, health and the console by HTTP: `host:port`, or `https://host:port` with "
        "the certificate of `listener.name.http.ssl.keystore.location` (or `ssl.keystore.location`). Port 0 takes a "
        "free one, and workers take one port each, as for `listeners`. Empty: nowhere. Other addresses than loopback "
        "need https, or `ottla.allow.insecure.listeners=true`. It needs the extra `metrics`.",
    )  # fmt: skip
    token: str = setting(
        "ottla.http.token", default="", kind=Type.PASSWORD,
        doc="The token that requests to the HTTP listener send in `Authorization: Bearer TOKEN`. Without it all "
        "clients that reach the listener can read the metrics, and none can change anything there. Health "
        "needs none, and the console signs people in by itself.",
    )  # fmt: skip
