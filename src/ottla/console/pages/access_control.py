"""ACLs, users and quotas: what there is, and changes."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from ottla.client import acl_admin, quota_admin, user_admin
from ottla.client.quota_admin import entity_text
from ottla.client.user_admin import ScramMechanism, UnsuitablePassword
from ottla.console.pages.page import Page
from ottla.console.paging import page_number, page_of
from ottla.console.plans import APPLY, STEP, Plan, carry_out
from ottla.console.visit import Refused, Visit
from ottla.core.acls import CLUSTER_NAME, AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.errors import KafkaError
from ottla.http.web import Response

E = TypeVar("E", bound=IntEnum)
_RESOURCES = tuple(acl_admin.OPERATIONS)
_OPTIONS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}


def _member(kind: type[E], text: str) -> E:
    """Return a member by its name. Raises Refused."""
    try:
        return kind[text]
    except KeyError:
        raise Refused(f"{text!r} is not one of {', '.join(member.name for member in kind)}") from None


# ---- ACLs


async def acls(visit: Visit) -> Response:
    """List the ACLs."""
    problem, bindings = "", list[AclBinding]()
    search = visit.query("search").strip()
    try:
        bindings = await acl_admin.list_acls(await visit.cluster())
    except KafkaError as error:
        problem = error.message
    shown = [acl for acl in bindings if search.lower() in f"{acl.principal} {acl.resource_name}".lower()]
    return visit.page(
        "acls.html",
        title="ACLs",
        listed=page_of(shown, page_number(visit.query("page"))),
        search=search,
        problem=problem,
        resources=_RESOURCES,
        operations=[operation for operation in AclOperation if operation > AclOperation.ANY],
        cli=visit.cli("acl", "list"),
    )


def _binding(visit: Visit) -> AclBinding:
    resource_type = _member(ResourceType, visit.field("resource_type"))
    name = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else visit.field("resource_name").strip()
    principal = visit.field("principal").strip()
    if ":" not in principal:
        principal = f"User:{principal}"
    binding = AclBinding(
        resource_type,
        _member(PatternType, visit.field("pattern_type", "LITERAL")),
        name,
        principal,
        visit.field("host", "*").strip() or "*",
        _member(AclOperation, visit.field("operation")),
        _member(PermissionType, visit.field("permission", "ALLOW")),
    )
    if not binding.is_concrete or not name or principal == "User:":
        raise Refused("an ACL needs a principal, a resource and an operation")
    return binding


def _acl_words(verb: str, acl: AclBinding) -> list[str]:
    who = "allow" if acl.permission_type is PermissionType.ALLOW else "deny"
    words = ["acl", verb, f"--{who}-principal", acl.principal]
    words += [f"--{who}-host", acl.host] if acl.host != "*" else []
    words += ["--operation", acl.operation.name.title().replace("_", "")]
    option = _OPTIONS.get(acl.resource_type)
    words += ["--cluster"] if option is None else [option, acl.resource_name]
    prefixed = acl.pattern_type is PatternType.PREFIXED
    return words + (["--resource-pattern-type", "prefixed"] if prefixed else [])


def _acl_row(acl: AclBinding) -> list[object]:
    return [
        acl.principal,
        acl.permission_type.name.lower(),
        acl.operation.name.lower(),
        f"{acl.resource_type.name.lower()} {acl.resource_name}",
        acl.pattern_type.name.lower(),
        acl.host,
    ]


_ACL_COLUMNS = ("Principal", "Permission", "Operation", "Resource", "Pattern", "Host")


async def create_acl(visit: Visit) -> Response:
    """Create an ACL."""
    acl, cluster = _binding(visit), await visit.cluster()

    async def apply() -> str:
        ((_, error),) = await acl_admin.create_acls(cluster, [acl])
        if error is not None:
            raise error
        return f"Created the ACL of {acl.principal}."

    words = visit.cli(*_acl_words("create", acl))
    plan = Plan("Create an ACL", words, "/acls", apply, _ACL_COLUMNS, [_acl_row(acl)], button="Create ACL")
    return await carry_out(visit, plan)


async def delete_acl(visit: Visit) -> Response:
    """Delete an ACL."""
    acl, cluster = _binding(visit), await visit.cluster()

    async def apply() -> str:
        ((_, error),) = await acl_admin.delete_acls(cluster, [acl])
        if error is not None:
            raise error
        return f"Deleted the ACL of {acl.principal}."

    words = visit.cli(*_acl_words("delete", acl))
    rows = [_acl_row(acl)]
    plan = Plan("Delete an ACL", words, "/acls", apply, _ACL_COLUMNS, rows, button="Delete ACL", is_danger=True)
    return await carry_out(visit, plan)


# ---- Users


async def users(visit: Visit) -> Response:
    """List the users who sign in with SCRAM."""
    problem, known = "", list[user_admin.ScramUser]()
    search = visit.query("search").strip()
    try:
        known = await user_admin.list_users(await visit.cluster())
    except KafkaError as error:
        problem = error.message
    shown = [user for user in known if search.lower() in user.name.lower()]
    return visit.page(
        "users.html",
        title="Users",
        listed=page_of(shown, page_number(visit.query("page"))),
        search=search,
        problem=problem,
        cli=visit.cli("user", "list"),
    )


async def set_password(visit: Visit) -> Response:
    """Set the password of a user, who may be new."""
    name, cluster = visit.field("name").strip(), await visit.cluster()
    if not name:
        raise Refused("a user needs a name")
    known = {user.name for user in await user_admin.list_users(cluster)}

    async def apply() -> str:
        password = visit.field("password")
        if not password:
            raise Refused("the password is empty")
        try:
            await user_admin.set_password(cluster, name, password, tuple(ScramMechanism))
        except UnsuitablePassword as error:
            raise Refused(str(error)) from None
        return f"Set the password of {name}."

    if visit.field(STEP) != APPLY and visit.field("password"):
        raise Refused("the password is asked for on the next page")
    verb = "alter" if name in known else "create"
    plan = Plan(
        f"Set the password of {name}" if name in known else f"Create user {name}",
        visit.cli("user", verb, name),
        "/users",
        apply,
        ("User", "Mechanisms"),
        [[name, ", ".join(map(str, ScramMechanism))]],
        button="Set password",
        secrets=("password",),
    )
    return await carry_out(visit, plan)


async def delete_user(visit: Visit) -> Response:
    """Delete the credentials of a user."""
    name, cluster = visit.field("name"), await visit.cluster()
    scram_user = next((user for user in await user_admin.list_users(cluster) if user.name == name), None)
    if scram_user is None:
        raise Refused(f"there is no user {name}", 404)

    async def apply() -> str:
        await user_admin.delete_credentials(cluster, name, scram_user.iterations)
        return f"Deleted user {name}."

    rows = [[name, ", ".join(map(str, scram_user.iterations))]]
    plan = Plan(
        f"Delete user {name}",
        visit.cli("user", "delete", name),
        "/users",
        apply,
        ("User", "Mechanisms"),
        rows,
        note="The user cannot sign in any more; connections that are open stay.",
        button="Delete user",
        is_danger=True,
    )
    return await carry_out(visit, plan)


# ---- Quotas

_KINDS = ("user", "client-id", "ip")


async def quotas(visit: Visit) -> Response:
    """List the quotas of all entities."""
    problem, entities = "", list[quota_admin.EntityQuotas]()
    try:
        entities = await quota_admin.list_quotas(await visit.cluster(), {})
    except KafkaError as error:
        problem = error.message
    rows = [(entity_text(entity_quotas.entity), entity_quotas) for entity_quotas in entities]
    return visit.page(
        "quotas.html",
        title="Quotas",
        listed=page_of(rows, page_number(visit.query("page"))),
        problem=problem,
        names=sorted({*quota_admin.quotas_of({"user": None}), *quota_admin.quotas_of({"ip": None})}),
        kinds=_KINDS,
        cli=visit.cli("quota", "list"),
    )


def _entity(visit: Visit) -> dict[str, str | None]:
    """Read the entity of a form: a name for each kind, or `*` for the default one. Raises Refused."""
    given = {kind: visit.field(kind).strip() for kind in _KINDS}
    entity = {kind: None if name == "*" else name for kind, name in given.items() if name}
    if not entity:
        raise Refused("name a user, a client id or an address; * is for all without a limit of their own")
    return entity


async def set_quota(visit: Visit) -> Response:
    """Set one quota of an entity, or remove it."""
    entity, name, text = _entity(visit), visit.field("quota"), visit.field("value").strip()
    cluster = await visit.cluster()
    if name not in quota_admin.quotas_of(entity):
        raise Refused(f"{entity_text(entity)} can have {', '.join(quota_admin.quotas_of(entity))}")
    try:
        values, removed = ({name: float(text)}, ()) if text else ({}, (name,))
    except ValueError:
        raise Refused(f"{text!r} is not a number") from None
    await quota_admin.alter_quotas(cluster, entity, values=values, removed=removed, validate_only=True)
    before = {
        entity_text(entity_quotas.entity): entity_quotas.values
        for entity_quotas in await quota_admin.list_quotas(cluster, entity)
    }

    async def apply() -> str:
        await quota_admin.alter_quotas(cluster, entity, values=values, removed=removed)
        return f"Changed {name} of {entity_text(entity)}."

    who = [
        word
        for kind, known in entity.items()
        for word in ([f"--{kind}-default"] if known is None else [f"--{kind}", known])
    ]
    words = ["quota", "set", f"{name}={text}", *who] if text else ["quota", "delete", name, *who]
    now = before.get(entity_text(entity), {}).get(name)
    plan = Plan(
        f"Change a quota of {entity_text(entity)}",
        visit.cli(*words),
        "/quotas",
        apply,
        ("Entity", "Quota", "Now", "Then"),
        [[entity_text(entity), name, now, values.get(name)]],
    )
    return await carry_out(visit, plan)


PAGES = (
    Page("/acls", acls),
    Page("/acls", create_acl, "POST"),
    Page("/acls/delete", delete_acl, "POST"),
    Page("/users", users),
    Page("/users", set_password, "POST"),
    Page("/users/delete", delete_user, "POST"),
    Page("/quotas", quotas),
    Page("/quotas", set_quota, "POST"),
)
