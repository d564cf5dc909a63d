"""What both brokers are asked about groups: the whole life of one, wrong turns, offsets, static members."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.differential.peer import Peer, passing
from tests.support.batches import batch, numbered
from tests.support.processes import until
from tests.support.wire_client import Answer

STEPS = range(11)  # enough to bring every API of a group's life through all its versions
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"  # version 0, the topic "t", no user data
PROTOCOLS = [{"name": "range", "metadata": SUBSCRIPTION}, {"name": "other", "metadata": SUBSCRIPTION}]


def coordinators(peer: Peer) -> None:
    """Pitfall 39: one key or many, kinds of coordinator, empty keys."""
    peer.topic("fc")
    for version in peer.each("find_coordinator"):
        for kind in (0, 3, -1):
            for key in ("some-group", ""):
                peer.ask(
                    f"kind {kind} key {key!r}",
                    "find_coordinator",
                    version,
                    key=key,
                    key_type=kind,
                    coordinator_keys=[key],
                )
        if version >= 1:
            peer.ask("a transaction's", "find_coordinator", version, key="tx", key_type=1, coordinator_keys=["tx"])
        if version >= 4:
            peer.ask("several", "find_coordinator", version, key_type=0, coordinator_keys=["a", "b", ""])
            peer.ask("none", "find_coordinator", version, key_type=0, coordinator_keys=[])


def join(peer: Peer, label: str, step: int, group: str, **more: Any) -> Answer:
    """Join, and once more with the given id where the broker asks for that; written down each time."""
    fields: dict[str, Any] = {
        "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 5_000, "member_id": "",
        "protocol_type": "consumer", "protocols": PROTOCOLS, "group_instance_id": None,
    }  # fmt: skip
    version = peer.near("join_group", step)
    answer = peer.ask(label, "join_group", version, **(fields | more))
    if answer.get("error_code") == 79:
        more["member_id"] = answer["member_id"]
        answer = peer.ask(f"{label} with an id", "join_group", version, **(fields | more))
    return answer


def life_of_a_group(peer: Peer) -> None:
    """Pitfalls 34, 35: join, sync, heartbeat, commit, fetch, describe, leave; and each with a wrong generation or member."""
    topic = peer.topic("g", partitions=2)
    for step in STEPS:
        group = f"{peer.stem}-life-{step}"
        me = join(peer, "join", step, group)
        who: dict[str, Any] = {"group_id": group, "generation_id": me["generation_id"], "member_id": me["member_id"]}
        plan: dict[str, Any] = {
            "assignments": [{"member_id": me["member_id"], "assignment": b"\0\1plan"}],
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        sync, beat = peer.near("sync_group", step), peer.near("heartbeat", step)
        peer.ask("heartbeat before sync", "heartbeat", beat, **who)
        peer.ask("sync", "sync_group", sync, **who, **plan)
        peer.ask("sync again", "sync_group", sync, **who, protocol_type="consumer", protocol_name="range")
        peer.ask("sync with another protocol", "sync_group", sync, **who, **(plan | {"protocol_name": "wrong"}))
        peer.ask("heartbeat", "heartbeat", beat, **who)
        for label, wrong in (
            ("an old generation", {"generation_id": 0}),
            ("a generation to come", {"generation_id": 9}),
            ("a stranger", {"member_id": "stranger"}),
            ("another group", {"group_id": "no-such-group"}),
            ("no group", {"group_id": ""}),
        ):
            peer.ask(f"heartbeat of {label}", "heartbeat", beat, **(who | wrong))
            peer.ask(f"sync of {label}", "sync_group", sync, **(who | wrong), **plan)
            commit(peer, f"commit of {label}", step, topic, **(who | wrong))
        commit(peer, "commit", step, topic, **who)
        commit(peer, "commit to a partition that is not", step, topic, partition=9, **who)
        commit(peer, "commit to a topic that is not", step, peer.stem + "-none", **who)
        commit(peer, "commit with too much said", step, topic, text="x" * 5000, **who)
        fetch(peer, "offsets", step, group, topic)
        describe(peer, "stable", step, group)
        listed(peer, "listed", step, group)
        join(peer, "join with an unknown id", step, group, member_id="stranger")
        join(peer, "join with nothing in common", step, group, protocols=[{"name": "new", "metadata": SUBSCRIPTION}])
        join(peer, "join as another kind", step, group, protocol_type="connect")
        peer.ask("delete while it lives", "delete_groups", peer.near("delete_groups", step), groups_names=[group])
        leave(peer, "a stranger leaves", step, group, "stranger")
        leave(peer, "leave", step, group, me["member_id"])
        leave(peer, "leave again", step, group, me["member_id"])
        describe(peer, "empty", step, group)
        commit(peer, "commit without a member", step, topic, group_id=group, generation_id=-1, member_id="")
        fetch(peer, "offsets of the empty group", step, group, topic)
        delete = peer.near("delete_groups", step)
        peer.ask("delete", "delete_groups", delete, groups_names=[group])
        peer.ask("delete again", "delete_groups", delete, groups_names=[group, ""])
        describe(peer, "deleted", step, group)
        fetch(peer, "offsets of the deleted group", step, group, topic)


def commit(
    peer: Peer,
    label: str,
    step: int,
    topic: str,
    *,
    partition: int = 0,
    text: str | None = "said",
    generation_id: int,
    **who: Any,
) -> None:
    """Commit offset 5 of a partition."""
    part = {
        "partition_index": partition,
        "committed_offset": 5,
        "committed_leader_epoch": 0,
        "committed_metadata": text,
    }
    peer.ask(label, "offset_commit", peer.near("offset_commit", step), **who, generation_id_or_member_epoch=generation_id,
             generation_id=generation_id, retention_time=-1, retention_time_ms=-1, topics=[peer.naming(topic) | {"partitions": [part]}])  # fmt: skip


def fetch(peer: Peer, label: str, step: int, group: str, topic: str) -> None:
    """Fetch committed offsets: of some partitions, of all, of what is not."""
    version = peer.near("offset_fetch", step)
    some = [peer.naming(topic) | {"partition_indexes": [0, 1, 9]}]
    none = [peer.naming(peer.stem + "-none") | {"partition_indexes": [0]}]
    for which, topics in (("some", some), ("nothing", []), ("of no topic", none)) + (
        (("all", None),) if version >= 2 else ()
    ):
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
        peer.ask(
            f"{label}, {which}",
            "offset_fetch",
            version,
            group_id=group,
            topics=topics,
            groups=[asked],
            require_stable=step % 2 == 1,
        )


def describe(peer: Peer, label: str, step: int, group: str) -> None:
    """Describe a group, and one that is not."""
    version = peer.near("describe_groups", step)
    for asked in (group, "no-such-group", ""):
        peer.ask(f"{label} {asked[-6:]!r}", "describe_groups", version, groups=[asked])
    peer.ask(f"{label} with operations", "describe_groups", version, groups=[group], include_authorized_operations=True)


def listed(peer: Peer, label: str, step: int, group: str) -> None:
    """Pitfall 46: the list by state and by kind."""
    version = peer.near("list_groups", step)
    for states, kinds in (
        ([], []),
        (["Stable"], []),
        (["stable"], []),
        (["Empty"], []),
        (["Nonsense"], []),
        ([], ["classic"]),
        ([], ["Consumer"]),
        ([], ["nonsense"]),
    ):
        if (states and version < 4) or (kinds and version < 5):
            continue
        answer = peer.quietly("list_groups", version, states_filter=states, types_filter=kinds)
        answer["groups"] = [each for each in answer["groups"] if each["group_id"] == group]
        peer.note(f"{label} {states} {kinds}", "list_groups", version, answer)


def leave(peer: Peer, label: str, step: int, group: str, member: str, instance: str | None = None) -> None:
    """Leave, the old way with one member and the new way with a list."""
    members = [{"member_id": member, "group_instance_id": instance, "reason": "done"}]
    peer.ask(label, "leave_group", peer.near("leave_group", step), group_id=group, member_id=member, members=members)


def two_members(peer: Peer) -> None:
    """Pitfall 34: the generation rises once, only the leader is given the members, the others wait for its plan."""
    other = peer.connection()
    for step in STEPS:
        group = f"{peer.stem}-two-{step}"
        first = join(peer, "the first joins", step, group)
        who: dict[str, Any] = {"group_id": group, "protocol_type": "consumer", "protocol_name": "range"}
        plan = [{"member_id": first["member_id"], "assignment": b"all"}]
        sync = peer.near("sync_group", step)
        peer.ask(
            "the first's plan",
            "sync_group",
            sync,
            **who,
            generation_id=first["generation_id"],
            member_id=first["member_id"],
            assignments=plan,
        )
        version = peer.near("join_group", step)
        fields: dict[str, Any] = {
            "group_id": group,
            "session_timeout": 10_000,
            "rebalance_timeout": 5_000,
            "protocol_type": "consumer",
            "protocols": PROTOCOLS,
        }
        member = ""
        if version >= 4:
            member = peer.ask("the second joins", "join_group", version, wire=other, **fields, member_id="")[
                "member_id"
            ]
        waiting = other.send("join_group", version, **fields, member_id=member)
        beat = {"group_id": group, "generation_id": first["generation_id"], "member_id": first["member_id"]}
        _beat_until_rebalance(peer, step, beat)
        again = join(peer, "the first joins again", step, group, member_id=first["member_id"])
        second = other.receive("join_group", version, waiting)
        again_leads = again["leader"] == again["member_id"]
        peer.note(
            "one leads",
            "join_group",
            version,
            [
                again["generation_id"],
                second["generation_id"],
                len(again["members"]),
                len(second["members"]),
                again_leads,
            ],
        )
        early = other.send(
            "sync_group",
            sync,
            **who,
            generation_id=second["generation_id"],
            member_id=second["member_id"],
            assignments=[],
        )
        plan = [
            {"member_id": again["member_id"], "assignment": b"one"},
            {"member_id": second["member_id"], "assignment": b"two"},
        ]
        peer.ask(
            "the plan for both",
            "sync_group",
            sync,
            **who,
            generation_id=again["generation_id"],
            member_id=again["member_id"],
            assignments=plan,
        )
        peer.note("the second's part", "sync_group", sync, other.receive("sync_group", sync, early))
        leave(peer, "the second leaves", step, group, second["member_id"])
        leave(peer, "the first leaves", step, group, first["member_id"])


def _beat_until_rebalance(peer: Peer, step: int, who: dict[str, Any]) -> None:
    version = peer.near("heartbeat", step)
    for _ in range(200):
        answer = peer.quietly("heartbeat", version, **who)
        if answer["error_code"]:
            break
    peer.note("the first is informed", "heartbeat", version, answer)


def static_members(peer: Peer) -> None:
    """A named member returns with a new id and its old plan; the one it replaced is fenced."""
    for step in (each for each in STEPS if peer.near("join_group", each) >= 5):
        group = f"{peer.stem}-static-{step}"
        first = join(peer, "named joins", step, group, group_instance_id="i1")
        sync, beat = max(peer.near("sync_group", step), 3), max(peer.near("heartbeat", step), 3)
        who: dict[str, Any] = {"group_id": group, "group_instance_id": "i1", "generation_id": first["generation_id"]}
        plan: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
        assignments = [{"member_id": first["member_id"], "assignment": b"mine"}]
        peer.ask("plan", "sync_group", sync, **who, **plan, member_id=first["member_id"], assignments=assignments)
        again = join(peer, "named returns", step, group, group_instance_id="i1")
        peer.ask("the plan is kept", "sync_group", sync, **who, **plan, member_id=again["member_id"], assignments=[])
        peer.ask("the replaced one beats", "heartbeat", beat, **who, member_id=first["member_id"])
        peer.ask("the new one beats", "heartbeat", beat, **who, member_id=again["member_id"])
        join(peer, "the replaced one joins", step, group, group_instance_id="i1", member_id=first["member_id"])
        leave(peer, "a wrong pair leaves", max(step, 3), group, "stranger", "i1")
        leave(peer, "an unknown name leaves", max(step, 3), group, "", "i9")
        describe(peer, "with a named member", step, group)
        leave(peer, "removed by name", max(step, 3), group, "", "i1")


def joins_that_cannot_be(peer: Peer) -> None:
    """Wrong group names, time limits, protocols."""
    for step in STEPS:
        group = f"{peer.stem}-never-{step}"
        join(peer, "no group", step, "")
        join(peer, "too short a session", step, group, session_timeout=10)
        join(peer, "too long a session", step, group, session_timeout=100_000_000)
        join(peer, "no protocols", step, group, protocols=[])
        join(peer, "no kind", step, group, protocol_type="")


def several_groups(peer: Peer) -> None:
    """OffsetFetch of many groups at once."""
    topic = peer.topic("og", partitions=2)
    for number in (1, 2):
        commit(peer, "prepared", 6, topic, group_id=f"{peer.stem}-og{number}", generation_id=-1, member_id="")
    for version in (each for each in peer.each("offset_fetch") if each >= 8):
        asked = [
            {
                "group_id": f"{peer.stem}-og{number}",
                "member_id": None,
                "member_epoch": -1,
                "topics": [peer.naming(topic) | {"partition_indexes": [0]}],
            }
            for number in (1, 2, 3)
        ]
        peer.ask("three groups", "offset_fetch", version, groups=asked, require_stable=False)
        peer.ask("no groups", "offset_fetch", version, groups=[], require_stable=False)


def offset_delete(peer: Peer) -> None:
    """Delete offsets of an empty group, of a subscribed topic, of what is not."""
    topic = peer.topic("od", partitions=2)
    peer.write(topic, batch(numbered(3)))
    group = f"{peer.stem}-od"
    for number in (0, 1):
        commit(peer, "prepared", 6, topic, partition=number, group_id=group, generation_id=-1, member_id="")
    for version in peer.each("offset_delete"):
        for label, name, which, numbers in (
            ("one", topic, group, [0]), ("again", topic, group, [0]), ("no such partition", topic, group, [9]),
            ("no such topic", peer.stem + "-none", group, [0]), ("no such group", topic, "no-such-group", [0]), ("no group", topic, "", [0]),
        ):  # fmt: skip
            parts = [{"partition_index": number} for number in numbers]
            peer.ask(label, "offset_delete", version, group_id=which, topics=[{"name": name, "partitions": parts}])
        fetch(peer, "what is left", 6, group, topic)


OTHER_SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1u" + b"\xff\xff\xff\xff"


def with_coordinator(peer: Peer) -> None:
    """Have the internal topic created, if this is the first scenario."""
    peer.quietly("find_coordinator", 3, key=peer.stem, key_type=0)
    until(lambda: not passing(peer.wire.call("describe_groups", 5, groups=[peer.stem])), what="the coordinator")


def static_member_with_other_topics(peer: Peer) -> None:
    """A named member returns to a stable group with the same protocols and another subscription."""
    with_coordinator(peer)
    for step in (each for each in STEPS if peer.near("join_group", each) >= 5):
        group = f"{peer.stem}-moved-{step}"
        first = join(peer, "named joins", step, group, group_instance_id="i1")
        sync = max(peer.near("sync_group", step), 3)
        who: dict[str, Any] = {
            "group_id": group, "group_instance_id": "i1", "protocol_type": "consumer", "protocol_name": "range",
        }  # fmt: skip
        plan = [{"member_id": first["member_id"], "assignment": b"mine"}]
        peer.ask("plan", "sync_group", sync, **who, generation_id=1, member_id=first["member_id"], assignments=plan)
        moved = [{"name": each["name"], "metadata": OTHER_SUBSCRIPTION} for each in PROTOCOLS]
        again = join(peer, "named returns for another topic", step, group, group_instance_id="i1", protocols=moved)
        fields = {**who, "generation_id": again["generation_id"], "member_id": again["member_id"]}
        peer.ask("the plan", "sync_group", sync, **fields, assignments=[])
        fewer = join(peer, "named returns without a protocol", step, group, group_instance_id="i1", protocols=moved[1:])
        peer.note("the generation", "join_group", peer.near("join_group", step), fewer["generation_id"])
        leave(peer, "removed by name", max(step, 3), group, "", "i1")


def members_without_subscriptions(peer: Peer) -> None:
    """Groups of other kinds: opaque metadata, and offsets that cannot be deleted while there are members."""
    with_coordinator(peer)
    topic = peer.topic("kinds", partitions=2)
    for step in STEPS[::3]:
        for kind, metadata in (("connect", b"opaque"), ("sr", b""), ("consumer", b"\0"), ("consumer", SUBSCRIPTION)):
            group = f"{peer.stem}-{kind}-{len(metadata)}-{step}"
            protocols = [{"name": "range", "metadata": metadata}]
            label = f"{kind} {len(metadata)}"
            me = join(peer, f"{label} joins", step, group, protocol_type=kind, protocols=protocols)
            who: dict[str, Any] = {
                "group_id": group, "generation_id": me["generation_id"], "member_id": me["member_id"],
            }  # fmt: skip
            commit(peer, f"{label} commits before the plan", step, topic, **who)
            plan = [{"member_id": me["member_id"], "assignment": b"plan"}]
            sync = peer.near("sync_group", step)
            peer.ask(
                f"{label} plan", "sync_group", sync, **who, assignments=plan, protocol_type=kind, protocol_name="range"
            )
            commit(peer, f"{label} commits", step, topic, **who)
            describe(peer, label, step, group)
            listed(peer, f"{label} listed", step, group)
            for number in (0, 1):
                asked = [{"name": topic, "partitions": [{"partition_index": number}]}]
                peer.ask(f"{label} deletes offset {number}", "offset_delete", 0, group_id=group, topics=asked)
            leave(peer, f"{label} leaves", step, group, me["member_id"])


def _is_written(peer: Peer, group: str) -> bool:
    """Whether a new group is known: Kafka answers its first member before it has written the group."""
    (found,) = peer.wire.call("describe_groups", 0, groups=[group])["groups"]
    return bool(found["group_state"] == "Empty")


def pending_members(peer: Peer) -> None:
    """A member id that was given and never used: listed, described, left with, used after the deletion of the group."""
    with_coordinator(peer)
    for step in (each for each in STEPS if peer.near("join_group", each) >= 4):
        group, version = f"{peer.stem}-pending-{step}", peer.near("join_group", step)
        fields: dict[str, Any] = {
            "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 5_000, "protocol_type": "consumer",
            "protocols": PROTOCOLS,
        }  # fmt: skip
        given = peer.ask("the first join", "join_group", version, **fields, member_id="")["member_id"]
        who: dict[str, Any] = {"group_id": group, "generation_id": 0, "member_id": given}
        peer.ask("heartbeat of a pending member", "heartbeat", peer.near("heartbeat", step), **who)
        peer.ask("sync of a pending member", "sync_group", peer.near("sync_group", step), **who, assignments=[],
                 protocol_type="consumer", protocol_name="range")  # fmt: skip
        topic = peer.stem + "-none"
        commit(peer, "commit of a pending member", step, topic, **who)
        until(partial(_is_written, peer, group), what="the group is written")
        describe(peer, "pending", step, group)
        listed(peer, "pending listed", step, group)
        leave(peer, "a pending member leaves", step, group, given)
        peer.ask("join after that", "join_group", version, **fields, member_id=given)
        peer.ask("another first join", "join_group", version, **fields, member_id="")
        peer.ask("delete", "delete_groups", peer.near("delete_groups", step), groups_names=[group])
        describe(peer, "deleted while pending", step, group)


def commit_too_large(peer: Peer) -> None:
    """Offsets that are larger together than a batch may be."""
    with_coordinator(peer)
    topic = peer.topic("large", partitions=300)
    part = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "x" * 4096}
    parts = [part | {"partition_index": number} for number in range(300)]
    peer.ask("too large", "offset_commit", 8, group_id=f"{peer.stem}-large", generation_id_or_member_epoch=-1,
             member_id="", topics=[{"name": topic, "partitions": parts}])  # fmt: skip


def transactional_offset_commits(peer: Peer) -> None:
    """TxnOffsetCommit of a transaction that does not exist, of a group that is refused, of what is not."""
    with_coordinator(peer)
    peer.quietly("find_coordinator", 3, key=peer.stem, key_type=1)
    topic = peer.topic("tx", partitions=2)
    part = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "said"}
    topics = [
        peer.naming(topic) | {"partitions": [part | {"partition_index": number} for number in (0, 9)]},
        peer.naming(peer.stem + "-none") | {"partitions": [part | {"partition_index": 0}]},
    ]
    for version in peer.each("txn_offset_commit"):
        for label, group in (("no transaction", f"{peer.stem}-tx"), ("no group", "")):
            peer.ask(
                label, "txn_offset_commit", version, transactional_id=f"{peer.stem}-none", group_id=group,
                producer_id=12345, producer_epoch=0, generation_id=-1, member_id="", topics=topics,
            )  # fmt: skip
        peer.ask(
            "nothing that exists", "txn_offset_commit", version, transactional_id=f"{peer.stem}-none",
            group_id=f"{peer.stem}-tx", producer_id=12345, producer_epoch=0, generation_id=-1, member_id="",
            topics=topics[1:],
        )  # fmt: skip
