"""The options of a console: which cluster, who may use it, and whether it may change anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.console.passwords import PasswordFile
from ottla.console.samples import EVERY_S
from ottla.console.workspace import Connect

if TYPE_CHECKING:  # they need libraries that a console without them has not
    from ottla.console.oidc import OidcProvider
    from ottla.console.registry import RegistryValues

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options. At most one of `users`, `connect_as` and `oidc` is set; without one there is no sign-in."""

    connect: Connect
    """Connects with the rights of the profile."""
    cluster_name: str = "cluster"
    may_change: bool = True
    users: PasswordFile | None = None
    connect_as: Callable[[str, str], Connect] | None = None
    """Returns how to connect with the rights of a SASL user, by name and password."""
    oidc: OidcProvider | None = None
    hosts: frozenset[str] | None = None
    """The names that the header Host may have, without the port; None for every name."""
    is_https: bool = False
    """Whether browsers reach it by https, through a proxy: cookies are for https alone then."""
    registry: RegistryValues | None = None
    """Decodes keys and values by a schema registry."""
    http_token: str = ""
    """The token of the brokers' listeners for HTTP."""
    job_file: Path | None = None
    sample_every_s: float = EVERY_S
    profile_words: tuple[str, ...] = ()
    """The words of a command line that select the same cluster."""

    @property
    def requires_sign_in(self) -> bool:
        """Whether pages are shown to those who have signed in alone."""
        return self.users is not None or self.connect_as is not None or self.oidc is not None
