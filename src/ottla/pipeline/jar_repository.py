"""Finds the repository and the proxy that a machine is set up with, for Ivy, which reads neither by itself.

A mirror of Maven Central is taken from Maven's settings of the user (`~/.m2/settings.xml`), and a proxy from the
environment (`https_proxy`, `http_proxy`, `no_proxy`). Maven is not needed for that.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

CENTRAL = "central"
_MIRRORED = frozenset({"*", CENTRAL, "external:*"})


def mirror_url(environment: Mapping[str, str]) -> str | None:
    """Return the address of the first mirror of Maven Central in the user's settings. None: there is none."""
    home = Path(environment.get("HOME") or Path.home())
    try:
        settings = ET.parse(home / ".m2" / "settings.xml").getroot()  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError):
        return None
    for mirror in settings.iterfind("{*}mirrors/{*}mirror"):
        found = {name: (mirror.findtext(f"{{*}}{name}") or "").strip() for name in ("url", "mirrorOf", "blocked")}
        of = {one.strip() for one in found["mirrorOf"].split(",")}
        if found["url"] and of & _MIRRORED and f"!{CENTRAL}" not in of and found["blocked"] != "true":
            return found["url"]
    return None


def ivy_settings(url: str) -> str:
    """Return settings of Ivy with which it asks one repository in Maven's layout."""
    return (
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(url)}/></resolvers></ivysettings>'
    )


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Return the options with which Java uses the proxies of the environment; it does not read the variables."""
    options = []
    for scheme in ("http", "https"):
        given = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") or ""
        proxy = urlsplit(given if "://" in given else f"http://{given}")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    without = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [f"*{host}" if host.startswith(".") else host for one in without.split(",") if (host := one.strip())]
    return [*options, f"-Dhttp.nonProxyHosts={'|'.join(hosts)}"] if options and hosts else options
