"""Declares the settings of the authorizer."""

from __future__ import annotations

from typing import Final

from ottla.core.settings import Section, Type, setting

AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Kafka's authorizers, with KRaft and with ZooKeeper: they decide the same, and Ottla's decides as they do."""


class AuthorizerConfig(Section):
    """Holds whether there is access control, and who is above it."""

    class_name: str = setting(
        "authorizer.class.name", default="", kind=Type.STRING,
        doc="Access control by ACLs: `org.apache.kafka.metadata.authorizer.StandardAuthorizer`, or Kafka's older name "
            "for it, `kafka.security.authorizer.AclAuthorizer`. Empty means that every client may do everything.",
    )  # fmt: skip
    super_users: str = setting(
        "super.users", default="", kind=Type.STRING,
        doc="The principals that may do everything whatever the ACLs say, separated by semicolons: "
            "`User:admin;User:broker`.",
    )  # fmt: skip
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", default=False, kind=Type.BOOLEAN,
        doc="Whether everyone may do everything with a resource that no ACL is about.",
    )  # fmt: skip

    @property
    def is_on(self) -> bool:
        """Return whether there is access control."""
        return bool(self.class_name.strip())

    @property
    def super_user_principals(self) -> frozenset[str]:
        """Return the principals that may do everything."""
        return frozenset(filter(None, map(str.strip, self.super_users.split(";"))))


def why_not_authorized(config: AuthorizerConfig) -> tuple[str, str] | None:
    """Return the setting with which there can be no access control, and why; None if all are right.

    A principal without a type would match no client, and a class that is not known would decide otherwise.
    """
    name = config.class_name.strip()
    if name and name not in AUTHORIZERS:
        return "authorizer.class.name", f"there is no authorizer {name}; Ottla's own is {AUTHORIZERS[0]}"
    for principal in sorted(config.super_user_principals):
        if ":" not in principal:
            return "super.users", f"{principal} is no principal; write User:{principal}"
    return None
