"""Plays scripts on one broker, and keeps the error codes of every answer.

A JoinGroup or SyncGroup may wait for other members: it is sent on a connection of its own, and its answer is noted with
the step after which it came. What only says that something is being loaded is asked again.
"""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.differential.peer import BEING_LOADED, passing
from tests.request_mixes.scripts import AFTER, BEFORE, CLIENTS, GROUPS, NONE, OTHERS, OWN, TOPICS, Step
from tests.support.batches import batch, numbered
from tests.support.processes import until
from tests.support.wire_client import Answer, ConnectionEnded, Wire

CLOSED, UNANSWERED = "connection closed", "no answer"
ANSWER_S = 10.0
CONCURRENT_TRANSACTIONS = 51
PATIENCE_S = 8.0
WAITING_S, SETTLED_S = 0.15, 0.03
TIMEOUT_MS = 60_000  # nothing expires while a script is played
TRANSACTIONAL = 0x10
Codes = list[tuple[str, int]]


@dataclass(slots=True)
class Membership:
    """One client's place in one group by one protocol."""

    member_id: str = ""
    epoch: int = 0  # or generation
    before: int = 0
    instance: str | None = None
    is_leader: bool = False
    members: list[str] = field(default_factory=list)
    owned: list[dict[str, Any]] = field(default_factory=list)

    def follow(self, epoch: int) -> None:
        """Take over the epoch of an answer."""
        if epoch != self.epoch:
            self.before, self.epoch = self.epoch, epoch

    def number(self, which: str) -> int:
        """Return the epoch that a step means."""
        return {BEFORE: self.before, AFTER: self.epoch + 1}.get(which, self.epoch)


@dataclass(slots=True)
class ProducerState:
    """One client's view of one transactional id."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0

    def follow(self, answer: Answer) -> None:
        """Take over the producer id and epoch of an answer."""
        if answer.get("error_code") == 0 and answer.get("producer_id", -1) >= 0:
            if (self.producer_id, self.epoch) != (answer["producer_id"], answer["producer_epoch"]):
                self.sequence = 0
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]


@dataclass(slots=True)
class WaitingAnswer:
    """A JoinGroup or SyncGroup that was not answered at once."""

    step: int
    api: str
    version: int
    correlation_id: int
    membership: Membership


def codes_of(answer: Any, path: str = "") -> Codes:
    """Return every error code of an answer with its place, other than those of no error below the top."""
    match answer:
        case dict():
            codes: Codes = []
            for name, value in answer.items():
                if name.endswith("error_code") and isinstance(value, int):
                    if value or not path:
                        codes.append((path + name, value))
                else:
                    codes += codes_of(value, f"{path}{name}.")
            return codes
        case list():
            return sorted(code for item in answer for code in codes_of(item, path))
        case _:
            return []


class Player:
    """The clients of a script on one broker."""

    def __init__(self, port: int, versions: dict[str, tuple[int, int]], stem: str) -> None:
        self.port, self.versions, self.stem = port, versions, stem
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.notes: list[list[str]] = []
        self._control = self._connect("control")
        self._wires = [self._connect(f"client-{number}") for number in range(CLIENTS)]
        self._waiting: dict[tuple[int, int], tuple[Wire, WaitingAnswer]] = {}
        self._joining_wires: dict[tuple[int, int], Wire] = {}
        self._members: dict[tuple[str, int, int], Membership] = {}
        self._sessions: dict[tuple[int, int], int] = {}  # client and group -> epoch of the share session
        self._producers: dict[tuple[int, int], ProducerState] = {}

    def _connect(self, client_id: str) -> Wire:
        return Wire(self.port, timeout_s=ANSWER_S, client_id=client_id)

    def close(self) -> None:
        """Close every connection."""
        for wire in (self._control, *self._wires, *self._joining_wires.values()):
            wire.close()

    def prepare(self) -> None:
        """Create the topics, and find every coordinator, which creates their internal topics."""
        new = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in TOPICS]
        self._asked("create_topics", 5, topics=new, timeout=20_000)
        until(self._has_topics, what="the topics")
        self._asked("find_coordinator", 4, key_type=0, coordinator_keys=[self.group(n) for n in range(GROUPS)])
        self._asked("find_coordinator", 4, key_type=1, coordinator_keys=[f"{self.stem}-t0", f"{self.stem}-t1"])
        settings = [("consumer.assignment.interval.ms", "0"), ("share.auto.offset.reset", "earliest")]
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in settings]
        resources = [{"resource_type": 32, "resource_name": self.group(n), "configs": configs} for n in range(GROUPS)]
        self._asked("incremental_alter_configs", 1, resources=resources, validate_only=False)

    def _has_topics(self) -> bool:
        answer = self._asked("metadata", 12, topics=[{"name": name} for name in TOPICS])
        self.topic_ids = {topic["name"]: topic["topic_id"] for topic in answer["topics"]}
        return all(
            not topic["error_code"] and all(not part["error_code"] for part in topic["partitions"])
            for topic in answer["topics"]
        )

    def group(self, number: int) -> str:
        """Return the name of a group of this script."""
        return f"{self.stem}-g{number}"

    # ---- Playing

    def play(self, step: Step) -> None:
        """Send a step's request, and note the codes of its answer and of those that came after it."""
        number = len(self.notes)
        notes: list[str] = []
        self.notes.append(notes)
        request: Callable[[Step], Answer | str] = getattr(self, f"_{step.kind}")
        notes.append(self._note_of(step.client, lambda: request(step)))
        if self._waiting:
            notes += self._arrived(SETTLED_S)
        assert len(self.notes) == number + 1

    def finish(self) -> None:
        """Leave every group with every id: whatever came before, this must be answered, and the groups be usable."""
        notes: list[str] = []
        self.notes.append(notes)
        for (protocol, client, number), member in sorted(self._members.items()):
            if member.member_id:
                leave = partial(self._leave_by, protocol, client, self.group(number), member.member_id)
                notes.append(self._note_of(client, leave))
        self.notes.append(self._arrived(SETTLED_S))
        for number in range(GROUPS):
            self.notes.append([self._note_of(0, partial(self._join_at_the_end, number))])

    def _join_at_the_end(self, number: int) -> Answer:
        return self._call(
            self._wires[0],
            "consumer_group_heartbeat",
            1,
            group_id=self.group(number),
            member_id="at-the-end",
            member_epoch=0,
            subscribed_topic_names=list(TOPICS),
            topic_partitions=[],
            rebalance_timeout=TIMEOUT_MS,
        )

    def _note_of(self, client: int, request: Callable[[], Answer | str]) -> str:
        try:
            answer = request()
        except (ConnectionEnded, TimeoutError) as error:
            self._wires[client].close()
            self._wires[client] = self._connect(f"client-{client}")
            return UNANSWERED if isinstance(error, TimeoutError) else CLOSED
        return answer if isinstance(answer, str) else str(codes_of(answer))

    def _leave_by(self, protocol: str, client: int, group: str, member_id: str) -> Answer:
        wire = self._wires[client]
        if protocol == "classic":
            members = [{"member_id": member_id, "group_instance_id": None, "reason": "done"}]
            return self._call(wire, "leave_group", 5, group_id=group, members=members)
        return self._call(wire, f"{protocol}_group_heartbeat", 1, group_id=group, member_id=member_id, member_epoch=-1)

    def _arrived(self, patience_s: float) -> list[str]:
        """Read the answers that were waited for, and have come."""
        notes: list[str] = []
        deadline = time.monotonic() + patience_s
        while self._waiting:
            sockets = {wire.socket: at for at, (wire, _) in self._waiting.items()}
            ready, _, _ = select.select(list(sockets), [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for socket in ready:
                wire, waiting = self._waiting.pop(sockets[socket])
                notes.append(f"step {waiting.step} was answered: {self._joined(wire, waiting, sockets[socket])}")
        return sorted(notes)

    def _joined(self, wire: Wire, waiting: WaitingAnswer, at: tuple[int, int]) -> str:
        try:
            answer = wire.receive(waiting.api, waiting.version, waiting.correlation_id)
        except ConnectionEnded:
            del self._joining_wires[at]
            return CLOSED
        member = waiting.membership
        if waiting.api == "join_group":
            if answer["member_id"]:
                member.member_id = answer["member_id"]
            if answer["error_code"] == 0:
                member.follow(answer["generation_id"])
                member.is_leader = answer["leader"] == answer["member_id"]
                member.members = [each["member_id"] for each in answer["members"]]
        return str(codes_of(answer))

    # ---- Requests

    def _version(self, api: str, share: float, *, at_least: int = 0, at_most: int = 99) -> int:
        low, high = self.versions[api]
        low, high = max(low, at_least), min(high, at_most)
        return low + int(share * (high - low + 1))

    def _call(self, wire: Wire, api: str, version: int, **fields: Any) -> Answer:
        """Send a request; again while the answer only says that something is not there yet."""
        patience = time.monotonic() + PATIENCE_S
        while True:
            answer = wire.call(api, version, **fields)
            codes = {code for _, code in codes_of(answer)}
            is_passing = passing(answer) or bool(codes & {*BEING_LOADED, CONCURRENT_TRANSACTIONS})
            if not is_passing or time.monotonic() > patience:
                return answer
            time.sleep(0.01)

    def _asked(self, api: str, version: int, **fields: Any) -> Answer:
        return self._call(self._control, api, version, **fields)

    def _member(self, protocol: str, step: Step) -> tuple[Membership, str]:
        """Return the client's membership, and the member id that the step means."""
        number = step.words["group"]
        own = self._members.setdefault((protocol, step.client, number), Membership())
        match step.words["id"]:
            case word if word == OWN:
                return own, own.member_id
            case word if word == OTHERS:
                for other in (
                    "classic",
                    "consumer",
                    "share",
                ):  # the id of a member by another protocol, if there is one
                    for client in range(CLIENTS):
                        member = self._members.get((other, client, number))
                        if member and member is not own and member.member_id:
                            return own, member.member_id
                return own, own.member_id
            case _:
                return own, ""

    def _wait_or_answer(self, step: Step, api: str, version: int, member: Membership, **fields: Any) -> str:
        at = (step.client, step.words["group"])
        if at in self._waiting:
            return "it still waits"
        wire = self._joining_wires.get(at) or self._connect(f"client-{step.client}")
        self._joining_wires[at] = wire
        number = len(self.notes) - 1
        waiting = WaitingAnswer(number, api, version, wire.send(api, version, **fields), member)
        self._asked("describe_groups", 5, groups=[fields["group_id"]])  # it comes after the request above
        ready, _, _ = select.select([wire.socket], [], [], WAITING_S)
        if not ready:
            self._waiting[at] = (wire, waiting)
            return "it waits"
        return self._joined(wire, waiting, at)

    def _join(self, step: Step) -> str:
        member, member_id = self._member("classic", step)
        member.instance = step.words["instance"]
        version = self._version("join_group", step.words["version"], at_least=5)
        topics = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in step.words["topics"])
        metadata = b"\0\0" + len(step.words["topics"]).to_bytes(4, "big") + topics + b"\xff\xff\xff\xff"
        names = ("range", "roundrobin") if step.words["full"] else ("range",)
        return self._wait_or_answer(
            step,
            "join_group",
            version,
            member,
            group_id=self.group(step.words["group"]),
            session_timeout=TIMEOUT_MS,
            rebalance_timeout=TIMEOUT_MS,
            member_id=member_id,
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocols=[{"name": name, "metadata": metadata} for name in names],
        )

    def _sync(self, step: Step) -> str:
        member, member_id = self._member("classic", step)
        version = self._version("sync_group", step.words["version"], at_least=3)
        assignment = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"  # version 0, no topics, no user data
        assignments = [{"member_id": each, "assignment": assignment} for each in member.members if member.is_leader]
        return self._wait_or_answer(
            step,
            "sync_group",
            version,
            member,
            group_id=self.group(step.words["group"]),
            member_id=member_id,
            generation_id=member.number(step.words["epoch"]),
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )

    def _classic_heartbeat(self, step: Step) -> Answer:
        member, member_id = self._member("classic", step)
        return self._call(
            self._wires[step.client],
            "heartbeat",
            self._version("heartbeat", step.words["version"]),
            group_id=self.group(step.words["group"]),
            generation_id=member.number(step.words["epoch"]),
            member_id=member_id,
            group_instance_id=member.instance,
        )

    def _leave(self, step: Step) -> Answer:
        _, member_id = self._member("classic", step)
        leaving = [{"member_id": member_id, "group_instance_id": step.words["instance"], "reason": "done"}]
        return self._call(
            self._wires[step.client],
            "leave_group",
            self._version("leave_group", step.words["version"]),
            group_id=self.group(step.words["group"]),
            member_id=member_id,
            members=leaving,
        )

    def _beat(self, protocol: str, step: Step, epoch: int, **fields: Any) -> Answer:
        member, member_id = self._member(protocol, step)
        if not member_id:  # these members choose their ids
            member_id = member.member_id = member.member_id or str(uuid.uuid4())
        api = f"{protocol}_group_heartbeat"
        answer = self._call(
            self._wires[step.client],
            api,
            self._version(api, step.words["version"]),
            group_id=self.group(step.words["group"]),
            member_id=member_id,
            member_epoch=epoch,
            **fields,
        )
        if answer["error_code"] == 0 and member_id == member.member_id:
            member.follow(answer["member_epoch"])
            if answer["assignment"] is not None:
                member.owned = answer["assignment"]["topic_partitions"]
        return answer

    def _consumer_join(self, step: Step) -> Answer:
        member, _ = self._member("consumer", step)
        member.instance = step.words["instance"]
        return self._beat(
            "consumer",
            step,
            0,
            instance_id=member.instance,
            rebalance_timeout=TIMEOUT_MS,
            topic_partitions=[],
            subscribed_topic_names=list(step.words["topics"]),
            server_assignor="range" if step.words["full"] else None,
        )

    def _consumer_heartbeat(self, step: Step) -> Answer:
        member, _ = self._member("consumer", step)
        fields: dict[str, Any] = {"instance_id": step.words["instance"] or member.instance, "rebalance_timeout": -1}
        fields["topic_partitions"] = member.owned if step.words["full"] else None
        topics = step.words["topics"]
        fields["subscribed_topic_names"] = None if topics is None else list(topics)
        return self._beat("consumer", step, member.number(step.words["epoch"]), **fields)

    def _consumer_leave(self, step: Step) -> Answer:
        member, _ = self._member("consumer", step)
        instance = step.words["instance"] or member.instance
        epoch = -2 if instance and step.words["epoch"] == BEFORE else -1
        return self._beat("consumer", step, epoch, instance_id=instance, topic_partitions=None)

    def _share_join(self, step: Step) -> Answer:
        return self._beat("share", step, 0, subscribed_topic_names=list(TOPICS))

    def _share_heartbeat(self, step: Step) -> Answer:
        member, _ = self._member("share", step)
        topics = step.words["topics"]
        subscribed = None if topics is None else list(topics)
        return self._beat("share", step, member.number(step.words["epoch"]), subscribed_topic_names=subscribed)

    def _share_leave(self, step: Step) -> Answer:
        return self._beat("share", step, -1, subscribed_topic_names=None)

    def _share_session(self, step: Step) -> tuple[str, int]:
        member, member_id = self._member("share", step)
        epoch = self._sessions.get((step.client, step.words["group"]), 0)
        sent = {BEFORE: 0, AFTER: epoch + 1}.get(step.words["epoch"], epoch)
        return member_id or member.member_id, sent

    def _share_topics(self, step: Step, *acknowledgements: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [{"partition_index": step.words["partition"], "acknowledgement_batches": list(acknowledgements)}]
        return [{"topic_id": self.topic_ids[step.words["topic"]], "partitions": parts}]

    def _share_request(self, step: Step, api: str, **fields: Any) -> Answer:
        member_id, epoch = self._share_session(step)
        if not member_id:
            return {"not_sent": 0}
        answer = self._call(
            self._wires[step.client],
            api,
            self._version(api, step.words["version"]),
            group_id=self.group(step.words["group"]),
            member_id=member_id,
            share_session_epoch=epoch,
            **fields,
        )
        if answer["error_code"] == 0:
            self._sessions[step.client, step.words["group"]] = epoch + 1
        return {"error_code": answer["error_code"]}  # the partitions' depend on what was acquired before

    def _share_fetch(self, step: Step) -> Answer:
        return self._share_request(
            step,
            "share_fetch",
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            share_acquire_mode=0,
            is_renew_ack=False,
            forgotten_topics_data=[],
            topics=self._share_topics(step),
        )

    def _share_acknowledge(self, step: Step) -> Answer:
        acknowledged = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [step.words["type"]]}
        return self._share_request(
            step, "share_acknowledge", is_renew_ack=False, topics=self._share_topics(step, acknowledged)
        )

    # ---- Offsets and groups

    def _topic(self, step: Step) -> dict[str, Any]:
        name = step.words["topic"]
        return {"name": name, "topic": name, "topic_id": self.topic_ids[name]}

    def _committer(self, step: Step) -> dict[str, Any]:
        if step.words["member"] == NONE:
            return {"member_id": "", "generation": -1, "group_instance_id": None}
        member, member_id = self._member(step.words["member"], step)
        return {
            "member_id": member_id,
            "generation": member.number(step.words["epoch"]),
            "group_instance_id": member.instance,
        }

    def _commit(self, step: Step) -> Answer:
        who = self._committer(step)
        generation = who.pop("generation")
        part = {"partition_index": step.words["partition"], "committed_offset": 1, "committed_leader_epoch": -1}
        topics = [self._topic(step) | {"partitions": [part | {"committed_metadata": ""}]}]
        return self._call(
            self._wires[step.client],
            "offset_commit",
            self._version("offset_commit", step.words["version"]),
            group_id=self.group(step.words["group"]),
            generation_id_or_member_epoch=generation,
            retention_time=-1,
            retention_time_ms=-1,
            topics=topics,
            **who,
        )

    def _fetch_offsets(self, step: Step) -> Answer:
        group = self.group(step.words["group"])
        version = self._version("offset_fetch", step.words["version"])
        topics = [self._topic(step) | {"partition_indexes": [0, 1]}]
        member, member_id = self._member("consumer", step)
        asked: dict[str, Any] = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
        if member_id and version >= 9:
            asked |= {"member_id": member_id, "member_epoch": member.number(step.words["epoch"])}
        return self._call(
            self._wires[step.client],
            "offset_fetch",
            version,
            group_id=group,
            topics=topics,
            groups=[asked],
            require_stable=False,
        )

    def _delete_offsets(self, step: Step) -> Answer:
        topics = [self._topic(step) | {"partitions": [{"partition_index": step.words["partition"]}]}]
        group = self.group(step.words["group"])
        return self._call(self._wires[step.client], "offset_delete", 0, group_id=group, topics=topics)

    def _delete_group(self, step: Step) -> Answer:
        version = self._version("delete_groups", step.words["version"])
        return self._call(
            self._wires[step.client], "delete_groups", version, groups_names=[self.group(step.words["group"])]
        )

    def _describe(self, step: Step) -> Answer:
        group, wire = self.group(step.words["group"]), self._wires[step.client]
        return {
            "classic": self._call(wire, "describe_groups", 6, groups=[group]),
            "consumer": self._call(wire, "consumer_group_describe", 1, group_ids=[group]),
            "share": self._call(wire, "share_group_describe", 1, group_ids=[group]),
        }

    def _alter_share_offsets(self, step: Step) -> Answer:
        topics = [{"topic_name": step.words["topic"], "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        group = self.group(step.words["group"])
        return self._call(self._wires[step.client], "alter_share_group_offsets", 0, group_id=group, topics=topics)

    def _delete_share_offsets(self, step: Step) -> Answer:
        group, topics = self.group(step.words["group"]), [{"topic_name": step.words["topic"]}]
        return self._call(self._wires[step.client], "delete_share_group_offsets", 0, group_id=group, topics=topics)

    def _describe_share_offsets(self, step: Step) -> Answer:
        asked = {"group_id": self.group(step.words["group"]), "topics": None}
        return self._call(self._wires[step.client], "describe_share_group_offsets", 0, groups=[asked])

    # ---- Transactions

    def _producer(self, step: Step) -> ProducerState:
        at = (step.client, step.words["transactional_id"])
        return self._producers.setdefault(at, ProducerState())

    def _transactional(self, step: Step) -> dict[str, Any]:
        producer = self._producer(step)
        change = {BEFORE: -1, AFTER: 1}.get(step.words["epoch"], 0)
        return {
            "transactional_id": f"{self.stem}-t{step.words['transactional_id']}",
            "producer_id": producer.producer_id,
            "producer_epoch": max(producer.epoch + change, 0) if producer.producer_id >= 0 else -1,
        }

    def _init_producer(self, step: Step) -> Answer:
        who = self._transactional(step)
        if step.words["id"] != OTHERS:
            who |= {"producer_id": -1, "producer_epoch": -1}
        answer = self._call(
            self._wires[step.client],
            "init_producer_id",
            self._version("init_producer_id", step.words["version"], at_most=5),
            transaction_timeout=TIMEOUT_MS,
            enable2_pc=False,
            keep_prepared_txn=False,
            **who,
        )
        self._producer(step).follow(answer)
        return answer

    def _add_partitions(self, step: Step) -> Answer:
        version = self._version("add_partitions_to_txn", step.words["version"], at_most=3)
        fields = {f"v3_and_below_{name}": value for name, value in self._transactional(step).items()}
        topics = [{"name": step.words["topic"], "partitions": [step.words["partition"]]}]
        return self._call(
            self._wires[step.client], "add_partitions_to_txn", version, v3_and_below_topics=topics, **fields
        )

    def _add_offsets(self, step: Step) -> Answer:
        version = self._version("add_offsets_to_txn", step.words["version"])
        group = self.group(step.words["group"])
        return self._call(
            self._wires[step.client], "add_offsets_to_txn", version, group_id=group, **self._transactional(step)
        )

    def _commit_in_transaction(self, step: Step) -> Answer:
        who = self._committer(step)
        part = {"partition_index": step.words["partition"], "committed_offset": 2, "committed_leader_epoch": -1}
        topics = [self._topic(step) | {"partitions": [part | {"committed_metadata": ""}]}]
        return self._call(
            self._wires[step.client],
            "txn_offset_commit",
            self._version("txn_offset_commit", step.words["version"], at_most=5),
            group_id=self.group(step.words["group"]),
            generation_id=who["generation"],
            member_id=who["member_id"],
            group_instance_id=who["group_instance_id"],
            topics=topics,
            **self._transactional(step),
        )

    def _produce(self, step: Step) -> Answer:
        who = self._transactional(step)
        if who["producer_id"] < 0:
            return {"not_sent": 0}
        producer = self._producer(step)
        records = batch(
            numbered(2),
            attributes=TRANSACTIONAL,
            base_sequence=producer.sequence,
            producer_id=who["producer_id"],
            producer_epoch=who["producer_epoch"],
        )
        parts = [{"index": step.words["partition"], "records": records}]
        answer = self._call(
            self._wires[step.client],
            "produce",
            self._version("produce", step.words["version"], at_least=9),
            transactional_id=who["transactional_id"],
            acks=-1,
            timeout=20_000,
            topic_data=[self._topic(step) | {"partition_data": parts}],
        )
        return {"error_code": answer["responses"][0]["partition_responses"][0]["error_code"]}

    def _end_transaction(self, step: Step) -> Answer:
        version = self._version("end_txn", step.words["version"])
        committed = step.words["committed"]
        answer = self._call(
            self._wires[step.client], "end_txn", version, committed=committed, **self._transactional(step)
        )
        self._producer(step).follow(answer)
        return answer

    def _list_transactions(self, step: Step) -> Answer:
        wire = self._wires[step.client]
        return self._call(wire, "list_transactions", 0, state_filters=[], producer_id_filters=[])
