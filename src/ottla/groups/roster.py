"""Who is in a group: members, their names, who leads, who waits for what.

Plain bookkeeping under `machine.py`, which decides. Every change keeps the counts and maps in step with the members;
`check` says so, and runs in production.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ottla.groups.events import Join, JoinedMember, MemberSnapshot


@dataclass(slots=True)
class Member:
    """One member. `protocols` in its order of preference."""

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
        """Its metadata for one protocol, empty if it does not speak it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def snapshot(self, protocol: str | None, assignment: bytes) -> MemberSnapshot:
        """As the log remembers it."""
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
    """The member a Join describes."""
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
class Roster:
    """The members of one group, in the order they came."""

    members: dict[str, Member] = field(default_factory=dict)
    by_instance: dict[str, str] = field(default_factory=dict)  # static members: instance id -> member id (KIP-345)
    pending: set[str] = field(default_factory=set)  # were given an id and have not joined with it yet (KIP-394)
    leader: str | None = None
    joining: dict[str, int] = field(default_factory=dict)  # member id -> ticket that waits for the rebalance
    syncing: dict[str, int] = field(default_factory=dict)  # member id -> ticket that waits for an assignment
    not_synced: set[str] = field(default_factory=set)  # joined this generation, have not asked for an assignment
    speakers: Counter[str] = field(default_factory=Counter)  # protocol -> how many members speak it

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        """A new member. The first one leads."""
        assert member.member_id not in self.members, f"{member.member_id} is in the group already"
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        self.speakers.update(_names(member))
        if member.instance_id is not None:
            assert member.instance_id not in self.by_instance, f"instance {member.instance_id} has a member already"
            self.by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def update(self, member: Member, join: Join) -> None:
        """A member joins again, perhaps with other protocols and timeouts."""
        self.speakers.subtract(_names(member))
        member.protocols = join.protocols
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.speakers.update(_names(member))

    def remove(self, member_id: str) -> Member:
        """A member is gone. The caller answers its tickets first."""
        assert member_id not in self.joining.keys() | self.syncing.keys(), f"{member_id} still waits for an answer"
        member = self.members.pop(member_id)
        self.not_synced.discard(member_id)
        self.speakers.subtract(_names(member))
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back under a new member id; the old one is a stranger from now on (KIP-345)."""
        assert old_id not in self.joining.keys() | self.syncing.keys(), f"{old_id} still waits for an answer"
        member = self.members[old_id]
        assert member.instance_id is not None, f"{old_id} is no static member"
        # Its place in the order is kept, so that a restart does not change who would lead next.
        self.members = {new_id if name == old_id else name: each for name, each in self.members.items()}
        member.member_id = new_id
        self.by_instance[member.instance_id] = new_id
        if old_id in self.not_synced:
            self.not_synced.remove(old_id)
            self.not_synced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def all_have_joined(self) -> bool:
        """Nobody is missing, and nobody was promised a place who has not taken it."""
        return len(self.joining) == len(self.members) and not self.pending

    def speaks(self, names: set[str]) -> bool:
        """Whether one of these protocols is spoken by every member."""
        everybody = len(self.members)
        return any(self.speakers[name] == everybody for name in names)

    def chosen_protocol(self) -> str:
        """Each member votes for its first protocol that all speak; most votes win, the older vote breaks a tie."""
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.speakers[name] == everybody)] += 1
        return max(votes, key=lambda name: votes[name])  # max keeps the first of equals

    def rebalance_timeout_ms(self) -> int:
        """The slowest member decides how long a rebalance may wait."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who joined. False if nobody did."""
        if self.leader not in self.joining:
            candidate = next((name for name in self.members if name in self.joining), None)
            if candidate is None:
                return False
            self.leader = candidate
        return True

    def as_leader_sees(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Everybody, with the metadata the leader needs to share out the work."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(protocol))
            for member in self.members.values()
        )

    def check(self) -> None:
        """What is always true of a roster."""
        names = self.members.keys()
        assert self.joining.keys() <= names, "a stranger waits for the rebalance"
        assert self.syncing.keys() <= names, "a stranger waits for an assignment"
        assert self.not_synced <= names, "a stranger is to sync"
        assert not self.pending & names, "a member is still pending"
        assert (self.leader is None) == (not self.members), f"{self.leader} leads {len(self.members)} members"
        assert self.leader is None or self.leader in names, "the leader is a stranger"
        statics = {each.instance_id: name for name, each in self.members.items() if each.instance_id is not None}
        assert statics == self.by_instance, "two claim one instance id, or one is forgotten"
        assert +self.speakers == Counter(name for each in self.members.values() for name in _names(each)), "miscounted"
        assert not self.members or self.speaks(set(self.speakers)), "no protocol is common to all"


def _names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}
