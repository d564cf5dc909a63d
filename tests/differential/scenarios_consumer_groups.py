"""What both brokers are asked about consumer groups of the new protocol (KIP-848): heartbeats, epochs, errors, describe.

Members choose their ids, and groups compute each target at once, so that both sides give the same assignments.
"""

from __future__ import annotations

from typing import Any

from tests.differential.peer import Peer
from tests.support.batches import batch, numbered
from tests.support.group_driver import subscription
from tests.support.processes import until
from tests.support.wire_client import Answer

GROUP_RESOURCE, SET = 32, 0
FIRST = "!1"  # before any member id that a broker chooses: the assignors take members in this order
JOINING: dict[str, Any] = {"rebalance_timeout": 30_000, "topic_partitions": [], "server_assignor": "range"}


class Asker:
    """Sends heartbeats of one group."""

    def __init__(self, peer: Peer, name: str, version: int) -> None:
        self.peer, self.version = peer, version
        self.group = f"{peer.stem}-{name}-{version}"
        peer.quietly("find_coordinator", 4, key_type=0, coordinator_keys=[self.group])  # creates the internal topic
        entry = {"name": "consumer.assignment.interval.ms", "config_operation": SET, "value": "0"}
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": self.group, "configs": [entry]}
        peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=False)

    def beat(self, label: str, member_id: str, epoch: int, **fields: Any) -> Answer:
        request: dict[str, Any] = {"group_id": self.group, "member_id": member_id, "member_epoch": epoch}
        return self.peer.ask(label, "consumer_group_heartbeat", self.version, **(request | fields))

    def join(self, label: str, member_id: str, *topics: str, **fields: Any) -> Answer:
        names: dict[str, Any] = {"subscribed_topic_names": list(topics)}
        return self.beat(label, member_id, 0, **(names | JOINING | fields))

    def describe(self, label: str) -> Answer:
        return self.peer.ask(label, "consumer_group_describe", self.version, group_ids=[self.group])


def _owned(topic_id: Any, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": list(partitions)}]


def _topic_id(answer: Answer) -> Any:
    return answer["assignment"]["topic_partitions"][0]["topic_id"]


def life_of_a_consumer_group(peer: Peer) -> None:
    """Join, release before grant, repeat, leave; the description after each step."""
    topic = peer.topic("kip848", partitions=4)
    for version in peer.each("consumer_group_heartbeat"):
        asker = Asker(peer, "life", version)
        first = asker.join("first joins", "m1", topic)
        identifier = _topic_id(first)
        asker.describe("one member")
        asker.beat("nothing new", "m1", 1)
        asker.beat(
            "full request", "m1", 1, rebalance_timeout=30_000, subscribed_topic_names=[topic],
            topic_partitions=_owned(identifier, 0, 1, 2, 3),
        )  # fmt: skip
        asker.join("second joins", "m2", topic)
        asker.describe("the second waits")
        asker.beat("first must release", "m1", 1, topic_partitions=_owned(identifier, 0, 1, 2, 3))
        asker.describe("the first releases")
        asker.beat("second still waits", "m2", 2, topic_partitions=[])
        asker.beat("first has released", "m1", 1, topic_partitions=_owned(identifier, 0, 1))
        asker.beat("second gets them", "m2", 2)
        asker.describe("both stable")
        asker.beat("previous epoch without partitions", "m1", 1)
        asker.beat("previous epoch with partitions", "m1", 1, topic_partitions=_owned(identifier, 0))
        asker.beat("previous epoch with others' partitions", "m1", 1, topic_partitions=_owned(identifier, 3))
        asker.beat("greater epoch", "m1", 9)
        asker.beat("unknown member", "m9", 2)
        asker.join("joins again", "m1", topic)
        asker.beat("second leaves", "m2", -1)
        asker.beat("first gets all", "m1", 2)
        asker.describe("one member again")
        asker.beat("unsubscribes", "m1", 3, subscribed_topic_names=[])
        asker.beat("has released all", "m1", 3, topic_partitions=[])
        asker.describe("without topics")
        asker.beat("leaves", "m1", -1)
        asker.beat("leaves again", "m1", -1)
        asker.describe("empty")
        for list_version in peer.each("list_groups"):
            if list_version >= 5:
                listed = peer.quietly("list_groups", list_version, types_filter=["consumer"], states_filter=[])
                mine = [group for group in listed["groups"] if group["group_id"] == asker.group]
                peer.note("listed", "list_groups", list_version, mine)
        peer.ask("described as a classic group", "describe_groups", 6, groups=[asker.group])


def consumer_group_refusals(peer: Peer) -> None:
    """Requests that are malformed, for other groups, or for members that are not there."""
    topic = peer.topic("refusals", partitions=2)
    for version in peer.each("consumer_group_heartbeat"):
        asker = Asker(peer, "refused", version)
        asker.beat("unknown group", "m1", 1)
        asker.beat("leaves an unknown group", "m1", -1)
        asker.describe("unknown group")
        asker.join("no group id", "m1", topic, group_id="")
        asker.join("blank member id", " ", topic)
        asker.join("blank instance id", "m1", topic, instance_id="")
        asker.join("blank rack", "m1", topic, rack_id="")
        asker.join("no rebalance timeout", "m1", topic, rebalance_timeout=-1)
        asker.join("owned partitions unknown", "m1", topic, topic_partitions=None)
        asker.join("no subscription", "m1", subscribed_topic_names=None)
        asker.join("unknown assignor", "m1", topic, server_assignor="sticky")
        asker.beat("epoch -3", "m1", -3)
        asker.beat("static leave without an instance id", "m1", -2)
        asker.join("joins", "m1", topic)
        asker.join("empty subscription", "m2")
        asker.join("topic that does not exist", "m3", f"{peer.stem}-missing")
        if version >= 1:
            asker.join("invalid expression", "m4", subscribed_topic_names=None, subscribed_topic_regex="a(")
        classic = peer.quietly(
            "offset_commit", 8, group_id=f"{peer.stem}-simple-{version}", generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": topic, "partitions": [_offset(0)]}],
        )  # fmt: skip
        assert classic["topics"]
        asker.join("over a group of offsets alone", "m1", topic, group_id=f"{peer.stem}-simple-{version}")


def _offset(index: int) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": "x"}


def static_consumers(peer: Peer) -> None:
    """Leave for a while, come back, be fenced (KIP-345 in the new protocol)."""
    topic = peer.topic("static848", partitions=2)
    for version in peer.each("consumer_group_heartbeat"):
        asker = Asker(peer, "static", version)
        asker.join("joins", "m1", topic, instance_id="a")
        asker.join("another one", "m2", topic, instance_id="a")
        asker.beat("of another member", "m2", 1, instance_id="a")
        asker.beat("unknown instance id", "m1", 1, instance_id="b")
        asker.beat("leaves for a while", "m1", -2, instance_id="a")
        asker.describe("away")
        asker.join("comes back", "m3", topic, instance_id="a")
        asker.beat("the old one", "m1", 1, instance_id="a")
        asker.describe("back")
        asker.beat("leaves for good", "m3", -1, instance_id="a")
        asker.describe("empty")


def members_that_change(peer: Peer) -> None:
    """Members that join again with another instance id or none, and that take the place of another one."""
    topic = peer.topic("changing848", partitions=4)
    asker = Asker(peer, "instance", 1)
    asker.join("joins as a", "m1", topic, instance_id="a")
    asker.join("joins again as b", "m1", topic, instance_id="b")
    asker.beat("as b", "m1", 2, instance_id="b")
    asker.beat("without one", "m1", 2)
    asker.beat("as a, which it was", "m1", 2, instance_id="a")
    asker.join("another as b", "m2", topic, instance_id="b")
    asker.beat("leaves for a while", "m1", -2, instance_id="b")
    asker.join("returns without one", "m1", topic)
    asker.beat("goes on", "m1", 2)
    asker.beat("leaves", "m1", -1)
    asker.describe("empty")
    asker = Asker(peer, "without", 1)
    asker.join("joins as a", "m1", topic, instance_id="a")
    asker.join("joins again without one", "m1", topic)
    asker.beat("without one", "m1", 2)
    asker.beat("as a, which it is", "m1", 2, instance_id="a")
    asker.join("another as a", "m2", topic, instance_id="a")
    asker.beat("leaves", "m1", -1)
    asker = Asker(peer, "place", 1)
    identifier = _topic_id(asker.join("joins as a", "m1", topic, instance_id="a"))
    asker.join("second joins as b", "m2", topic, instance_id="b")
    asker.beat("first releases", "m1", 2, instance_id="a", topic_partitions=_owned(identifier, 0, 1))
    asker.beat("second gets them", "m2", 3, instance_id="b", topic_partitions=[])
    asker.join("first as b, which is not free", "m1", topic, instance_id="b")
    asker.beat("second leaves for a while", "m2", -2, instance_id="b")
    asker.join("first as b", "m1", topic, instance_id="b")
    asker.beat("first goes on as b", "m1", 3, instance_id="b")
    asker.describe("first alone")
    asker.join("third joins", "m3", topic)
    asker.describe("first and third")


class Mixed(Asker):
    """Sends requests of both protocols for one group."""

    def __init__(self, peer: Peer, name: str, *, at_once: bool = True) -> None:
        super().__init__(peer, name, 1)
        if not at_once:
            peer.quietly("find_coordinator", 4, key_type=0, coordinator_keys=[self.group])
            self.group += "-later"

    def classic_join(self, label: str, member_id: str, topic: str, instance_id: str | None = None) -> Answer:
        protocols = [{"name": "range", "metadata": subscription(topic, owned={})}]
        return self.peer.ask(
            label, "join_group", 9, group_id=self.group, session_timeout=30_000, rebalance_timeout=30_000,
            member_id=member_id, group_instance_id=instance_id, protocol_type="consumer", protocols=protocols, reason=None,
        )  # fmt: skip

    def sync(self, label: str, member_id: str, generation: int) -> Answer:
        return self.peer.ask(
            label, "sync_group", 5, group_id=self.group, generation_id=generation, member_id=member_id,
            group_instance_id=None, protocol_type="consumer", protocol_name="range", assignments=[],
        )  # fmt: skip

    def classic_beat(self, label: str, member_id: str, generation: int) -> Answer:
        return self.peer.ask(label, "heartbeat", 4, group_id=self.group, generation_id=generation, member_id=member_id)

    def leave(self, label: str, member_id: str, instance_id: str | None = None) -> Answer:
        member = {"member_id": member_id, "group_instance_id": instance_id, "reason": None}
        return self.peer.ask(label, "leave_group", 5, group_id=self.group, members=[member])


def members_that_change_their_protocol(peer: Peer) -> None:
    """Members of a mixed group that go on by the other protocol with the same id, and leave by either."""
    topic = peer.topic("mixed848", partitions=4)
    mixed = Mixed(peer, "to-new")
    identifier = _topic_id(mixed.join("new joins", FIRST, topic))
    old = mixed.classic_join("old asks for an id", "", topic)["member_id"]
    mixed.classic_join("old joins", old, topic)
    mixed.beat("old by a heartbeat", old, 3)
    mixed.beat("new releases", FIRST, 2, topic_partitions=_owned(identifier, 0, 1))
    mixed.beat("old gets its partitions", old, 3, topic_partitions=[])
    mixed.classic_beat("old by its protocol again", old, 3)
    mixed.sync("old syncs", old, 3)
    mixed.join("old joins by heartbeat", old, topic)
    mixed.leave("old leaves by LeaveGroup", old)
    mixed.beat("old is gone", old, -1)
    mixed.describe("new alone")
    mixed = Mixed(peer, "to-old")
    mixed.join("first joins", "m1", topic)
    mixed.join("second joins", "m2", topic)
    mixed.beat("first releases", "m1", 2, topic_partitions=_owned(identifier, 0, 1))
    mixed.classic_join("first by JoinGroup", "m1", topic)
    mixed.classic_beat("first in the old generation", "m1", 2)
    mixed.sync("first syncs", "m1", 3)
    mixed.beat("first by a heartbeat", "m1", 3)
    mixed.beat("second", "m2", 3)
    mixed.classic_join("second by JoinGroup", "m2", topic)
    mixed.sync("second syncs", "m2", 3)
    mixed.classic_join("first by JoinGroup again", "m1", topic)
    mixed.beat("first by a heartbeat again", "m1", 3)
    mixed.leave("second leaves", "m2")
    mixed.classic_join("with an unknown instance id", "m1", topic, "z")
    mixed = Mixed(peer, "silent", at_once=False)
    mixed.join("new joins and is silent", FIRST, topic)
    old = mixed.classic_join("old asks for an id", "", topic)["member_id"]
    mixed.classic_join("old joins at once", old, topic)
    mixed.sync("old syncs at once", old, 2)
    mixed.classic_beat("old goes on", old, 2)


def commits_of_consumers(peer: Peer) -> None:
    """OffsetCommit and OffsetFetch with member epochs (KIP-1251)."""
    topic = peer.topic("commits848", partitions=2)
    peer.write(topic, batch(numbered(5)))
    asker = Asker(peer, "commits", 1)
    first = asker.join("joins", "m1", topic)
    identifier = _topic_id(first)
    for version in peer.each("offset_commit"):
        for epoch, member in ((1, "m1"), (0, "m1"), (2, "m1"), (1, "m9"), (-1, "")):
            where = {"name": topic} if version < 10 else {"topic_id": identifier}
            peer.ask(
                f"epoch {epoch} of {member!r}", "offset_commit", version, group_id=asker.group,
                generation_id_or_member_epoch=epoch, member_id=member, group_instance_id=None,
                topics=[where | {"partitions": [_offset(0)]}],
            )  # fmt: skip
    asker.join("second joins", "m2", topic)
    asker.beat("releases", "m1", 1, topic_partitions=_owned(identifier, 0, 1))
    asker.beat("has released", "m1", 1, topic_partitions=_owned(identifier, 0))
    for index in (0, 1):
        peer.ask(
            f"older epoch, partition {index}", "offset_commit", 9, group_id=asker.group,
            generation_id_or_member_epoch=1, member_id="m1", group_instance_id=None,
            topics=[{"name": topic, "partitions": [_offset(index)]}],
        )  # fmt: skip
    readers: tuple[tuple[str | None, int], ...] = (("m1", 2), ("m1", 1), ("m9", 2), (None, -1))
    for reader, epoch in readers:
        peer.ask(
            f"fetch of {reader} in epoch {epoch}", "offset_fetch", 9,
            groups=[{"group_id": asker.group, "member_id": reader, "member_epoch": epoch, "topics": None}],
        )  # fmt: skip


def settings_of_consumer_groups(peer: Peer) -> None:
    """DescribeConfigs and IncrementalAlterConfigs of a GROUP resource."""
    group = f"{peer.stem}-settings"
    for key, value in (
        ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "1"),
        ("consumer.session.timeout.ms", "70000"), ("consumer.heartbeat.interval.ms", "6000"),
        ("consumer.heartbeat.interval.ms", "20000"), ("consumer.unknown", "1"),
    ):  # fmt: skip
        resource = {
            "resource_type": GROUP_RESOURCE, "resource_name": group,
            "configs": [{"name": key, "config_operation": SET, "value": value}],
        }  # fmt: skip
        peer.ask(f"{key}={value}", "incremental_alter_configs", 1, resources=[resource], validate_only=False)
    keys = ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": keys}
    peer.ask(
        "described", "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    topic = peer.topic("settings848")
    asker = Asker(peer, "interval", 1)
    resource = {
        "resource_type": GROUP_RESOURCE, "resource_name": asker.group,
        "configs": [{"name": "consumer.heartbeat.interval.ms", "config_operation": SET, "value": "7000"}],
    }  # fmt: skip
    peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    until(lambda: _interval_of(peer, asker.group) == "7000", what="the interval of the group")
    asker.join("with an interval of its own", "m1", topic)


def _interval_of(peer: Peer, group: str) -> str | None:
    """Return the heartbeat interval of a group as DescribeConfigs has it: Kafka applies a change a moment later."""
    key = "consumer.heartbeat.interval.ms"
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": [key]}
    answer = peer.quietly(
        "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    values: list[str | None] = [each["value"] for each in answer["results"][0]["configs"]]
    return values[0] if values else None
