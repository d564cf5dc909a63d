"""docs/acls.md, from what the handlers declare that a client must be allowed to do."""

from __future__ import annotations

from ottla.broker.requests.authorization import Access, denial
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS, Api
from ottla.core.acls import ResourceType, pascal_case
from ottla.testing.kit.faults.names import name_of

HEAD = """\
# What each API requires

With an authorizer (`authorizer.class.name`) a client needs, for each row of its API, the operation on the resource: for
the request as a whole, or for each element of it. The rules of ACLs are Kafka's: READ, WRITE, DELETE and ALTER include
DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS, and a DENY overrides any ALLOW. An *or* names an operation on the
cluster that is enough by itself. A denied element has the error of the last column; the others are answered as if it
were not there. Brokers need `ClusterAction`, or to be super users.

A topic that a client may not describe has the same answer whether or not it exists, where the client names it, and is
left out where it does not. Generated from the handlers' declarations by `tools/generate.py`.

| API | Operation | Resource | Of | If denied |
| --- | --- | --- | --- | --- |
"""


def generate() -> dict[str, str]:
    """What the page should hold, by its path."""
    apis = sorted([*APIS.values(), *INTER_BROKER_APIS.values()], key=lambda api: name_of(api.key))
    rows = [_row(api, access) for api in apis for access in api.handler().access]
    free = ", ".join(name_of(api.key) for api in apis if not api.handler().access)
    return {"docs/acls.md": HEAD + "\n".join(rows) + f"\n\nRequired of no client: {free}.\n"}


def _row(api: Api, access: Access) -> str:
    operation = pascal_case(access.operation.name)
    if access.or_cluster is not None:
        operation += f", or {pascal_case(access.or_cluster.name)} on the cluster"
    refused = access.refusal or f"`{denial(access.resource).code.name}`"
    return (
        " | ".join(
            ("| " + name_of(api.key), operation, pascal_case(ResourceType(access.resource).name), access.about, refused)
        )
        + " |"
    )
