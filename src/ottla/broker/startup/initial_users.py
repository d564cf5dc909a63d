"""Gives users their first SCRAM credentials, before the broker serves: without a user no client could create one.

A user that has a credential of a mechanism keeps it, so that what is given at each start is of effect once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.metadata_store import znodes
from ottla.metadata_store.store import NO_VERSION, Create, MetadataStore, NodeExists, Op, Put, VersionConflict
from ottla.security.sasl.credentials import HASHES, from_password, to_text

log = logging.getLogger(__name__)

_KEY = "ottla.initial.users.file"
_PARENTS = ("/config", f"/config/{znodes.USERS_KIND}")
_ATTEMPTS = 5


def read_users(file: str) -> dict[str, str]:
    """Return the passwords by user of a file of lines NAME=PASSWORD; none if it is absent. Raises InvalidSettings."""
    if not file:
        return {}
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        log.warning("%s: there is no file %s, so no user is added", _KEY, file)
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings([SettingProblem(_KEY, file, f"it cannot be read: {error}")]) from None
    users = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, password = line.partition("=")
        if not (equals and name.strip() and password):
            raise InvalidSettings([SettingProblem(_KEY, file, f"line {number} is not NAME=PASSWORD")])
        users[name.strip()] = password
    return users


async def add_users(store: MetadataStore, users: Mapping[str, str]) -> None:
    """Give each user a credential of each mechanism of which it has none. Raises StoreError."""
    for parent in _PARENTS if users else ():
        try:
            await store.commit([Create(parent)])
        except NodeExists:
            continue
    for name, password in users.items():
        for attempt in range(_ATTEMPTS):
            try:
                await _add_user(store, name, password)
                break
            except (NodeExists, VersionConflict):  # another broker of the cluster starts, too
                if attempt == _ATTEMPTS - 1:
                    raise


async def _add_user(store: MetadataStore, name: str, password: str) -> None:
    path = znodes.config_path(znodes.USERS_KIND, znodes.sanitized(name))
    node = await store.get(path)
    settings = {} if node is None else znodes.decode_config(path, node.value)
    missing = [mechanism for mechanism in HASHES if mechanism not in settings]
    if not missing:
        log.info("user %s has its credentials already: they stay as they are", name)
        return
    settings |= {mechanism: to_text(from_password(mechanism, password)) for mechanism in missing}
    version = NO_VERSION if node is None else node.version
    text = znodes.encode_config(settings)
    op: Op = Create(path, text) if version == NO_VERSION else Put(path, text, version)
    await store.commit([op])
    log.info("user %s has been given credentials: %s", name, ", ".join(missing))
