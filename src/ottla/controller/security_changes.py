"""Names the changes of ACLs and delegation tokens. What decides them is loaded with the first of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.core.acls import AclBinding, AclFilter

if TYPE_CHECKING:  # with the first token
    from ottla.metadata_store.token_znodes import TokenInformation


class CreateAcls(NamedTuple):
    """Create ACLs that are valid. Those that exist are created again without effect."""

    bindings: Sequence[AclBinding]


class DeleteAcls(NamedTuple):
    """Delete the ACLs that filters choose."""

    filters: Sequence[AclFilter]


DeletedAcls = list[AclBinding]


class CreateToken(NamedTuple):
    """Create a token."""

    token: TokenInformation


class RenewToken(NamedTuple):
    """Have a token expire so long after now, at the request of a principal."""

    token_id: str
    principal: str
    now_ms: int
    period_ms: int


class ExpireToken(NamedTuple):
    """Have a token expire so long after now, at once if the period is negative, at the request of a principal."""

    token_id: str
    principal: str
    now_ms: int
    period_ms: int


class RemoveToken(NamedTuple):
    """Remove a token that has expired, if it still is."""

    token_id: str
    now_ms: int


TokenChange = CreateToken | RenewToken | ExpireToken | RemoveToken
SecurityChange = CreateAcls | DeleteAcls | TokenChange
