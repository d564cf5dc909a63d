"""What both brokers are asked about share groups: members, deliveries, acknowledgements, offsets, and wrong turns."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.differential.peer import Peer
from tests.support.batches import batch, numbered
from tests.support.processes import until
from tests.support.wire_client import Answer

GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
UNKNOWN_TOPIC = uuid.UUID(int=99)
WAIT_MS = 250


def new_member() -> str:
    return str(uuid.uuid4())


def begin_at_the_start(peer: Peer, group: str) -> None:
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=False)


def find(peer: Peer, group: str) -> None:
    """Find the group's coordinator, which creates its topic."""
    peer.quietly("find_coordinator", 4, key_type=0, coordinator_keys=[group])


def joined(peer: Peer, group: str, topic: str) -> tuple[str, int]:
    """Join, and send heartbeats until there are partitions; returns the member's id and epoch."""
    find(peer, group)
    member, epoch, found = new_member(), 0, False

    def beat() -> bool:
        nonlocal epoch, found
        topics = [topic] if epoch == 0 else None
        answer = peer.quietly(
            "share_group_heartbeat", 1, group_id=group, member_id=member, member_epoch=epoch,
            subscribed_topic_names=topics,
        )  # fmt: skip
        assert answer["error_code"] == 0, answer
        epoch = answer["member_epoch"]
        found = found or bool(answer["assignment"] and answer["assignment"]["topic_partitions"])
        return found

    until(beat, what=f"partitions for {group}", timeout_s=60)
    return member, epoch


def share_members(peer: Peer) -> None:
    """Heartbeats that are refused, and what describes a group."""
    topic, group = peer.topic("sm"), f"{peer.stem}-share-members"
    api, member = "share_group_heartbeat", new_member()
    find(peer, group)
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "subscribed_topic_names": [topic],
    }
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("no group", {"group_id": ""}),
        ("no member", {"member_id": ""}),
        ("a long member id", {"member_id": "m" * 40}),
        ("no topics", {"subscribed_topic_names": None}),
        ("empty topics", {"subscribed_topic_names": []}),
        ("epoch -5", {"member_epoch": -5}),
        ("an empty rack", {"rack_id": ""}),
        ("an unknown group", {"member_epoch": 3, "subscribed_topic_names": None}),
        ("leaving an unknown group", {"member_epoch": -1, "subscribed_topic_names": None}),
    )
    for label, more in wrong:
        peer.ask(label, api, 1, **(fields | more))
    member, epoch = joined(peer, group, topic)
    known: dict[str, Any] = {"group_id": group, "member_id": member, "subscribed_topic_names": None}
    peer.ask("a future epoch", api, 1, **known, member_epoch=epoch + 100)
    peer.ask("an unknown member", api, 1, **(known | {"member_id": new_member()}), member_epoch=1)
    for asked in (group, f"{peer.stem}-no-such-group"):
        answer = peer.quietly("share_group_describe", 1, group_ids=[asked], include_authorized_operations=False)
        one = answer["groups"][0]
        members = [
            (len(each["assignment"]["topic_partitions"]), each["subscribed_topic_names"]) for each in one["members"]
        ]
        noted = {key: one[key] for key in ("error_code", "group_state", "assignor_name")}
        peer.note("described", "share_group_describe", 1, noted | {"members": members})
    listed = peer.quietly("list_groups", 5, states_filter=[], types_filter=["share"])["groups"]
    peer.note("listed", "list_groups", 5, [one for one in listed if one["group_id"] == group])
    peer.ask("a classic heartbeat", "heartbeat", 4, group_id=group, generation_id=1, member_id="m")
    commit = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    peer.ask(
        "a commit", "offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=commit
    )
    left = peer.quietly(api, 1, **known, member_epoch=-1)
    peer.note("left", api, 1, (left["error_code"], left["member_epoch"]))
    peer.ask("left again", api, 1, **known, member_epoch=-1)


class Consumer:
    """Fetches and acknowledges, and notes what matters of the answers."""

    def __init__(self, peer: Peer, group: str, topic: str, version: int, *, partition: int = 0) -> None:
        self.peer, self.group, self.topic_id, self.version = peer, group, peer.ids[topic], version
        self.partition = partition
        self.member, self.epoch = new_member(), 0

    def fetch(self, label: str, *batches: dict[str, Any], epoch: int | None = None, **more: Any) -> Answer:
        sent = self.epoch if epoch is None else epoch
        fields: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": sent, "max_wait": 500,
            "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "share_acquire_mode": 0,
            "is_renew_ack": False, "forgotten_topics_data": [],
        }  # fmt: skip
        partition = {"partition_index": self.partition, "acknowledgement_batches": list(batches)}
        topics = [{"topic_id": self.topic_id, "partitions": [partition]}] if sent == 0 or batches else []
        answer = self.peer.quietly("share_fetch", self.version, **(fields | {"topics": topics} | more))
        if not answer["error_code"]:
            self.epoch = sent + 1
        if label:
            self.note(label, answer)
        return answer

    def note(self, label: str, answer: Answer) -> None:
        kept = ("error_code", "acknowledge_error_code", "acquired_records")
        topics = sorted(answer["responses"], key=lambda topic: topic["topic_id"] != self.topic_id)  # in no order
        partitions = [{key: partition[key] for key in kept} for topic in topics for partition in topic["partitions"]]
        seen = {"error_code": answer["error_code"], "partitions": partitions}
        self.peer.note(label, "share_fetch", self.version, seen)

    def first_fetch(self, label: str) -> None:
        """Fetch until the share partition is loaded and has records."""
        answer = self.fetch("")
        for _ in range(20):
            if any(part["acquired_records"] for topic in answer["responses"] for part in topic["partitions"]):
                break
            answer = self.fetch("")
        self.note(label, answer)

    def acknowledge(
        self, label: str, first: int, last: int, *kinds: int, epoch: int | None = None, renews: bool = False
    ) -> None:
        sent = self.epoch if epoch is None else epoch
        batches = [batch_of(first, last, *kinds)]
        partition = {"partition_index": self.partition, "acknowledgement_batches": batches}
        answer = self.peer.quietly(
            "share_acknowledge", self.version, group_id=self.group, member_id=self.member, share_session_epoch=sent,
            is_renew_ack=renews, topics=[{"topic_id": self.topic_id, "partitions": [partition]}],
        )  # fmt: skip
        if not answer["error_code"]:
            self.epoch = sent + 1
        errors = [part["error_code"] for topic in answer["responses"] for part in topic["partitions"]]
        self.peer.note(label, "share_acknowledge", self.version, {"error_code": answer["error_code"], "errors": errors})


def batch_of(first: int, last: int, *kinds: int) -> dict[str, Any]:
    return {"first_offset": first, "last_offset": last, "acknowledge_types": list(kinds)}


def share_deliveries(peer: Peer) -> None:
    """Fetches, acknowledgements of every kind, sessions and epochs."""
    for version in peer.each("share_fetch"):
        topic, group = peer.topic(f"sd{version}"), f"{peer.stem}-share-deliveries-{version}"
        begin_at_the_start(peer, group)
        peer.write(topic, batch(numbered(10)))
        peer.write(topic, batch(numbered(10)))
        joined(peer, group, topic)
        ada, bob = Consumer(peer, group, topic, version), Consumer(peer, group, topic, version)
        ada.fetch("no session", epoch=5)
        ada.acknowledge("no session", 0, 0, ACCEPT, epoch=1)
        ada.acknowledge("the initial epoch", 0, 0, ACCEPT, epoch=0)
        ada.fetch("acknowledging first", batch_of(0, 0, ACCEPT))
        ada.first_fetch("all records")
        bob.fetch("nothing is left")
        ada.fetch("an old epoch", epoch=99)
        ada.acknowledge("accepted", 0, 1, ACCEPT)
        ada.acknowledge("accepted twice", 0, 1, ACCEPT)
        ada.acknowledge("released", 2, 3, RELEASE)
        ada.acknowledge("rejected", 4, 4, REJECT)
        ada.acknowledge("each with its own kind", 5, 7, ACCEPT, RELEASE, 0)
        ada.acknowledge("a wrong number of kinds", 8, 9, ACCEPT, ACCEPT, ACCEPT)
        ada.acknowledge("an unknown kind", 8, 9, 9)
        ada.acknowledge("no kind", 8, 9)
        ada.acknowledge("after the end", 19, 25, ACCEPT)
        ada.acknowledge("far after the end", 50, 60, ACCEPT)
        ada.acknowledge("backwards", 9, 8, ACCEPT)
        ada.acknowledge("renewed", 8, 9, RENEW, renews=version > 1)
        ada.acknowledge("renewed without the flag", 8, 9, RENEW)
        bob.acknowledge("another member's", 8, 9, ACCEPT)
        first = bob.fetch("")
        offsets = [
            offset
            for one in first["responses"]
            for part in one["partitions"]
            for acquired in part["acquired_records"]
            for offset in range(acquired["first_offset"], acquired["last_offset"] + 1)
        ]
        peer.note("released records", "share_fetch", version, offsets)
        bob.fetch("accepted with a fetch", batch_of(2, 3, ACCEPT))
        if version > 1:
            ada.fetch("renewed with a fetch", batch_of(8, 9, RENEW), is_renew_ack=True)
            nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "batch_size": 0}
            ada.fetch("renewed with an empty fetch", batch_of(8, 9, RENEW), is_renew_ack=True, **nothing)
        ada.fetch("the last request", batch_of(8, 9, ACCEPT), epoch=-1)
        ada.fetch("after the last request")
        unknown = Consumer(peer, group, topic, version)
        unknown.topic_id = UNKNOWN_TOPIC
        unknown.fetch("an unknown topic")
        Consumer(peer, group, topic, version).fetch("no member", member_id="")
        Consumer(peer, group, topic, version).fetch("no group", group_id=None)


def share_gone_topics(peer: Peer) -> None:
    """A topic that is not there takes no time away from a fetch that names others too."""
    for version in peer.each("share_fetch"):
        here, gone, group = peer.topic(f"sg1-{version}"), peer.topic(f"sg2-{version}"), f"{peer.stem}-gone-{version}"
        begin_at_the_start(peer, group)
        joined(peer, group, here)
        consumer = Consumer(peer, group, here, version)

        def waits(label: str, *topics: uuid.UUID, consumer: Consumer = consumer, version: int = version) -> None:
            named = [{"topic_id": each, "partitions": [{"partition_index": 0}]} for each in topics]
            began = time.monotonic()
            consumer.fetch(label, topics=named, max_wait=WAIT_MS)
            peer.note(f"{label}, waits", "share_fetch", version, time.monotonic() - began >= WAIT_MS / 1100)

        waits("both are here", peer.ids[here], peer.ids[gone])
        peer.delete(gone)
        waits("one is gone")
        waits("one is still gone")
        peer.topic(f"sg2-{version}")
        consumer.fetch("one was made again", max_wait=WAIT_MS)
        other = Consumer(peer, group, here, version)
        waits("one never was", peer.ids[here], UNKNOWN_TOPIC, consumer=other)
        waits("one still never was", consumer=other)


def share_offsets(peer: Peer) -> None:
    """Offsets of a group, with members and without."""
    topic, group = peer.topic("so", partitions=2), f"{peer.stem}-share-offsets"
    begin_at_the_start(peer, group)
    peer.write(topic, batch(numbered(10)))
    member, _ = joined(peer, group, topic)
    consumer = Consumer(peer, group, topic, peer.near("share_fetch", 1))
    consumer.first_fetch("all records")
    consumer.acknowledge("accepted", 0, 3, ACCEPT)
    consumer.fetch("the last request", epoch=-1)
    alter = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 5}, {"partition_index": 9}]}]
    alter.append({"topic_name": f"{peer.stem}-no-topic", "partitions": [{"partition_index": 0, "start_offset": 1}]})
    delete = [{"topic_name": topic}, {"topic_name": f"{peer.stem}-no-topic"}]

    def ask_all(label: str) -> None:
        for version in peer.each("describe_share_group_offsets"):
            asked = [
                {"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]},
                {"group_id": f"{peer.stem}-no-group", "topics": None},
            ]
            answer = peer.quietly("describe_share_group_offsets", version, groups=asked)
            noted = [
                [
                    one["error_code"],
                    [(part["start_offset"], part["error_code"]) for t in one["topics"] for part in t["partitions"]],
                ]
                for one in sorted(answer["groups"], key=lambda each: str(each["group_id"]))
            ]
            peer.note(label, "describe_share_group_offsets", version, noted)
        answer = peer.quietly("alter_share_group_offsets", 0, group_id=group, topics=alter)
        errors = {
            one["topic_name"].removeprefix(peer.stem): [part["error_code"] for part in one["partitions"]]
            for one in answer["responses"]
        }
        peer.note(label, "alter_share_group_offsets", 0, {"error_code": answer["error_code"], "errors": errors})

    ask_all("with a member")
    peer.ask("with a member", "delete_share_group_offsets", 0, group_id=group, topics=delete)
    peer.ask("with a member", "delete_groups", 2, groups_names=[group])
    beat: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": -1, "subscribed_topic_names": None}
    peer.quietly("share_group_heartbeat", 1, **beat)
    ask_all("without members")
    ask_all("altered")
    answer = peer.quietly("delete_share_group_offsets", 0, group_id=group, topics=delete)
    errors = {one["topic_name"].removeprefix(peer.stem): one["error_code"] for one in answer["responses"]}
    peer.note("deleted", "delete_share_group_offsets", 0, {"error_code": answer["error_code"], "errors": errors})
    peer.ask("no group", "delete_share_group_offsets", 0, group_id=f"{peer.stem}-no-group", topics=delete)
    peer.ask("no group", "alter_share_group_offsets", 0, group_id=f"{peer.stem}-no-group", topics=alter)
    peer.ask("deleted", "delete_groups", 2, groups_names=[group])
    peer.ask("deleted again", "delete_groups", 2, groups_names=[group])


def share_subscriptions(peer: Peer) -> None:
    """A member that changes its topics has none of those that it left, also before there is a new target."""
    first, second, group = peer.topic("sua"), peer.topic("sub"), f"{peer.stem}-share-subscriptions"
    api, member = "share_group_heartbeat", new_member()
    find(peer, group)

    def beat(label: str, epoch: int, *topics: str) -> Answer:
        answer = peer.quietly(
            api, 1, group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=list(topics) or None
        )
        assignment = answer["assignment"]
        given = None if assignment is None else [sorted(one["partitions"]) for one in assignment["topic_partitions"]]
        if label:
            peer.note(label, api, 1, (answer["error_code"], given))
        return answer

    joined_in = beat("", 0, first)["member_epoch"]
    peer.note("the first epoch", api, 1, joined_in)
    epoch = joined_in

    def has_partitions() -> bool:
        nonlocal epoch
        answer = beat("", epoch, first)
        epoch = answer["member_epoch"]
        return bool(answer["assignment"]["topic_partitions"])

    until(has_partitions, what="partitions of the first topic", timeout_s=60)
    beat("names its topic", epoch, first)
    beat("names nothing", epoch)
    beat("leaves its topic", epoch, second)
    beat("and nothing new", epoch)
    beat("comes back", epoch, first)


def share_offsets_of_a_new_group(peer: Peer) -> None:
    """AlterShareGroupOffsets creates a group, whose lag is known then."""
    topic, group = peer.topic("son"), f"{peer.stem}-share-new"
    peer.write(topic, batch(numbered(5)))
    find(peer, group)
    topics = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 2}]}]
    unknown = [{"topic_name": f"{peer.stem}-none", "partitions": [{"partition_index": 0, "start_offset": 2}]}]

    def alter(label: str, group: str, topics: list[dict[str, Any]]) -> None:
        answer = peer.quietly("alter_share_group_offsets", 0, group_id=group, topics=topics)
        errors = [part["error_code"] for one in answer["responses"] for part in one["partitions"]]
        peer.note(label, "alter_share_group_offsets", 0, (answer["error_code"], errors))

    def describe(label: str, group: str) -> None:
        answer = peer.quietly("share_group_describe", 1, group_ids=[group], include_authorized_operations=False)
        one = answer["groups"][0]
        noted = {key: one[key] for key in ("error_code", "group_state", "group_epoch", "assignment_epoch")}
        peer.note(label, "share_group_describe", 1, noted)

    alter("an unknown topic", f"{group}-none", unknown)
    describe("of an unknown topic", f"{group}-none")
    alter("a new group", group, topics)
    describe("a new group", group)
    answer = peer.quietly("describe_share_group_offsets", 1, groups=[{"group_id": group, "topics": None}])
    offsets = [(part["start_offset"], part["lag"]) for t in answer["groups"][0]["topics"] for part in t["partitions"]]
    peer.note("a new group", "describe_share_group_offsets", 1, offsets)
    fields = {"group_id": group, "member_id": new_member(), "member_epoch": 0, "subscribed_topic_names": [topic]}
    joining = peer.quietly("share_group_heartbeat", 1, **fields)
    peer.note("its first member", "share_group_heartbeat", 1, (joining["error_code"], joining["member_epoch"]))


def share_states(peer: Peer) -> None:
    """The share coordinator's APIs for one share partition, and its coordinator."""
    topic, group = peer.topic("ss"), f"{peer.stem}-share-states"
    topic_id = peer.ids[topic]
    for key in ("", "group", "group:topic:0", f"group:{'A' * 22}:x", f"group:{'A' * 22}:0"):
        peer.ask(f"key {key}", "find_coordinator", 6, key_type=2, coordinator_keys=[key])

    def ask(label: str, api: str, version: int, partition: dict[str, Any], topic_id: uuid.UUID = topic_id) -> None:
        topics = [{"topic_id": topic_id, "partitions": [{"partition": 0} | partition]}]
        peer.ask(label, api, version, group_id=group, topics=topics)

    for version in peer.each("read_share_group_state_summary"):
        ask("before", "read_share_group_state_summary", version, {"leader_epoch": 0})
    for version in peer.each("write_share_group_state"):
        ask(
            "before",
            "write_share_group_state",
            version,
            {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "state_batches": []},
        )
    ask("before", "read_share_group_state", 0, {"leader_epoch": 0})
    ask("before", "delete_share_group_state", 0, {})
    ask("an unknown topic", "initialize_share_group_state", 0, {"state_epoch": 0, "start_offset": 0}, UNKNOWN_TOPIC)
    ask(
        "a negative partition",
        "initialize_share_group_state",
        0,
        {"partition": -1, "state_epoch": 0, "start_offset": 0},
    )
    ask("initialized", "initialize_share_group_state", 0, {"state_epoch": 2, "start_offset": 10})
    ask("an old epoch", "initialize_share_group_state", 0, {"state_epoch": 1, "start_offset": 10})
    batches = [
        {"first_offset": 10, "last_offset": 19, "delivery_state": 0, "delivery_count": 1},
        {"first_offset": 12, "last_offset": 14, "delivery_state": 2, "delivery_count": 1},
        {"first_offset": 15, "last_offset": 15, "delivery_state": 4, "delivery_count": 3},
    ]
    change: dict[str, Any] = {"state_epoch": 2, "leader_epoch": 0, "start_offset": 11, "state_batches": batches}
    for version in peer.each("write_share_group_state"):
        ask("written", "write_share_group_state", version, change)
        ask("an old state epoch", "write_share_group_state", version, change | {"state_epoch": 1})
        ask("read", "read_share_group_state", 0, {"leader_epoch": 0})
    ask("a newer leader reads", "read_share_group_state", 0, {"leader_epoch": 4})
    for version in peer.each("write_share_group_state"):
        ask("an old leader", "write_share_group_state", version, change | {"leader_epoch": 3})
    ask("an old leader", "read_share_group_state", 0, {"leader_epoch": 3})
    for version in peer.each("read_share_group_state_summary"):
        ask("after", "read_share_group_state_summary", version, {"leader_epoch": 4})
    ask("deleted", "delete_share_group_state", 0, {})
    ask("deleted", "read_share_group_state", 0, {"leader_epoch": 4})
