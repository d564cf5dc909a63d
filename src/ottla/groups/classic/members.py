"""Keeps the members of a group: their ids, the leader, and the requests that wait for a response.

`machine.py` decides; this module only keeps counts and maps consistent with the members. `check` asserts that, in
production too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ottla.groups.classic.events import Join, JoinedMember, MemberSnapshot


@dataclass(slots=True)
class Member:
    """Holds one member; `protocols` are in its order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False  # it has not completed a join yet, so it cannot send heartbeats

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return its metadata for one protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def snapshot(self, protocol: str | None, assignment: bytes) -> MemberSnapshot:
        """Return the member as it is written to the log."""
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata_for(protocol),
            assignment=assignment,
        )


def member_from(join: Join, member_id: str, *, is_new: bool) -> Member:
    """Create the member that a Join describes."""
    return Member(
        member_id,
        join.instance_id,
        join.client_id,
        join.client_host,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        join.protocols,
        is_new=is_new,
    )


@dataclass(slots=True)
class GroupMembers:
    """Holds the members of one group, in the order in which they joined."""

    by_id: dict[str, Member] = field(default_factory=dict)
    by_instance: dict[str, str] = field(default_factory=dict)  # static members: instance id -> member id (KIP-345)
    pending: set[str] = field(default_factory=set)  # assigned member ids that have not joined yet (KIP-394)
    leader: str | None = None
    joining: dict[str, int] = field(default_factory=dict)  # member id -> ticket that waits for the rebalance
    syncing: dict[str, int] = field(default_factory=dict)  # member id -> ticket that waits for an assignment
    not_synced: set[str] = field(default_factory=set)  # joined this generation, have not asked for an assignment
    supporters: Counter[str] = field(default_factory=Counter)  # protocol -> how many members support it

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader."""
        assert member.member_id not in self.by_id, f"{member.member_id} is already in the group"
        self.by_id[member.member_id] = member
        self.pending.discard(member.member_id)
        self.supporters.update(_names(member))
        if member.instance_id is not None:
            assert member.instance_id not in self.by_instance, f"instance {member.instance_id} already has a member"
            self.by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def update(self, member: Member, join: Join) -> None:
        """Update a member that joins again, perhaps with other protocols and timeouts."""
        self.supporters.subtract(_names(member))
        member.protocols = join.protocols
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.supporters.update(_names(member))

    def remove(self, member_id: str) -> Member:
        """Remove a member. The caller answers its tickets first."""
        assert member_id not in self.joining.keys() | self.syncing.keys(), f"{member_id} still waits for an answer"
        member = self.by_id.pop(member_id)
        self.not_synced.discard(member_id)
        self.supporters.subtract(_names(member))
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new member id; the old id becomes unknown (KIP-345)."""
        assert old_id not in self.joining.keys() | self.syncing.keys(), f"{old_id} still waits for an answer"
        member = self.by_id[old_id]
        assert member.instance_id is not None, f"{old_id} is not a static member"
        # The order is kept, so that a restart does not change which member would lead next.
        self.by_id = {new_id if name == old_id else name: each for name, each in self.by_id.items()}
        member.member_id = new_id
        self.by_instance[member.instance_id] = new_id
        if old_id in self.not_synced:
            self.not_synced.remove(old_id)
            self.not_synced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def all_have_joined(self) -> bool:
        """Return whether every member has joined and no assigned member id is unused."""
        return len(self.joining) == len(self.by_id) and not self.pending

    def supports_any(self, names: set[str]) -> bool:
        """Return whether every member supports one of these protocols."""
        member_count = len(self.by_id)
        return any(self.supporters[name] == member_count for name in names)

    def chosen_protocol(self) -> str:
        """Choose the protocol: each member votes for its first one that all support; the older vote breaks a tie."""
        member_count = len(self.by_id)
        votes: Counter[str] = Counter()
        for member in self.by_id.values():
            votes[next(name for name, _ in member.protocols if self.supporters[name] == member_count)] += 1
        return max(votes, key=lambda name: votes[name])  # max keeps the first of equals

    def rebalance_timeout_ms(self) -> int:
        """Return how long a rebalance may wait: the longest timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader is a member that joined. Returns False if no member did."""
        if self.leader not in self.joining:
            candidate = next((name for name in self.by_id if name in self.joining), None)
            if candidate is None:
                return False
            self.leader = candidate
        return True

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """List all members with the metadata that the leader needs to assign partitions."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(protocol))
            for member in self.by_id.values()
        )

    def check(self) -> None:
        """Assert the invariants of the members."""
        names = self.by_id.keys()
        assert self.joining.keys() <= names, "an unknown member waits for the rebalance"
        assert self.syncing.keys() <= names, "an unknown member waits for an assignment"
        assert self.not_synced <= names, "an unknown member is expected to sync"
        assert not self.pending & names, "a member is still pending"
        assert (self.leader is None) == (not self.by_id), f"{self.leader} leads {len(self.by_id)} members"
        assert self.leader is None or self.leader in names, "the leader is not a member"
        statics = {each.instance_id: name for name, each in self.by_id.items() if each.instance_id is not None}
        assert statics == self.by_instance, "by_instance does not match the static members"
        assert +self.supporters == Counter(name for each in self.by_id.values() for name in _names(each)), (
            "supporters does not match the members"
        )
        assert not self.by_id or self.supports_any(set(self.supporters)), "no protocol is common to all"


def _names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}
