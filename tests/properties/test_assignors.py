"""Server-side assignors against what they guarantee: every partition assigned, balance, stickiness, minimal movement."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ottla.groups.assignors import range_assignor, simple, uniform
from ottla.groups.assignors.spec import Assignor, GroupSpec, MemberSpec, Partitions, TargetAssignment

TOPICS = [UUID(int=number) for number in range(1, 6)]
MEMBERS = [f"member-{number}" for number in range(7)]


def _load(partitions: Partitions) -> int:
    return sum(len(indexes) for indexes in partitions.values())


def _pairs(partitions: Partitions) -> set[tuple[UUID, int]]:
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


def _after(spec: GroupSpec, target: TargetAssignment) -> GroupSpec:
    """The same group, whose current target is now `target`."""
    members = {name: member._replace(assigned=target[name]) for name, member in spec.members.items()}
    return spec._replace(members=members)


@st.composite
def group_specs(draw: st.DrawFn, *, homogeneous: bool | None = None, shared: bool = False) -> GroupSpec:
    """A group with any current target, parts of which are obsolete; a partition has several owners only if shared."""
    counts = {topic_id: draw(st.integers(1, 12)) for topic_id in TOPICS}
    names = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    subsets = st.frozensets(st.sampled_from(TOPICS))
    same = draw(st.booleans()) if homogeneous is None else homogeneous
    common = draw(subsets)
    assigned: dict[str, dict[UUID, set[int]]] = {name: {} for name in names}
    for topic_id, count in counts.items():
        for index in range(draw(st.integers(0, count + 2))):  # the topic may have had more partitions before
            for owner in draw(st.lists(st.sampled_from(names), max_size=7 if shared else 1, unique=True)):
                assigned[owner].setdefault(topic_id, set()).add(index)
    members = {
        name: MemberSpec(
            common if same else draw(subsets),
            {topic_id: frozenset(indexes) for topic_id, indexes in assigned[name].items()},
            instance_id=f"instance-{name}" if draw(st.booleans()) else None,
        )
        for name in names
    }
    subscribed = frozenset[UUID]().union(*(member.topics for member in members.values()))
    return GroupSpec(members, {topic_id: counts[topic_id] for topic_id in subscribed})


def _check_every_partition_has_one_subscriber(spec: GroupSpec, assignor: Assignor) -> TargetAssignment:
    target = assignor(spec)
    assert target.keys() == spec.members.keys()
    owned = [pair for partitions in target.values() for pair in _pairs(partitions)]
    assert len(owned) == len(set(owned)), "a partition has two owners"
    assert set(owned) == {(topic_id, index) for topic_id, count in spec.partitions.items() for index in range(count)}
    for name, partitions in target.items():
        assert partitions.keys() <= spec.members[name].topics
        assert all(partitions.values()), "a topic without partitions"
    return target


@given(group_specs())
def test_uniform_gives_every_partition_to_one_subscriber(spec: GroupSpec) -> None:
    _check_every_partition_has_one_subscriber(spec, uniform.assign)


@given(group_specs())
def test_range_gives_every_partition_to_one_subscriber(spec: GroupSpec) -> None:
    _check_every_partition_has_one_subscriber(spec, range_assignor.assign)


@given(group_specs(homogeneous=True))
def test_uniform_balances_equal_subscriptions_and_moves_no_more_than_it_must(spec: GroupSpec) -> None:
    target = uniform.assign(spec)
    loads = sorted(_load(partitions) for partitions in target.values())
    assert loads[-1] - loads[0] <= 1
    valid = {
        name: {
            (topic_id, index)
            for topic_id, index in _pairs(member.assigned)
            if topic_id in member.topics and index < spec.partitions[topic_id]
        }
        for name, member in spec.members.items()
    }
    minimum, larger = divmod(sum(spec.partitions.values()), len(spec.members))
    sizes = sorted((len(pairs) for pairs in valid.values()), reverse=True)
    can_keep = sum(min(size, minimum + (at < larger)) for at, size in enumerate(sizes))
    kept = sum(len(valid[name] & _pairs(partitions)) for name, partitions in target.items())
    assert kept == can_keep


@given(group_specs(homogeneous=False))
def test_uniform_balances_different_subscriptions(spec: GroupSpec) -> None:
    target = uniform.assign(spec)
    loads = {name: _load(partitions) for name, partitions in target.items()}
    for name, partitions in target.items():
        for topic_id in partitions:
            for other, member in spec.members.items():
                if topic_id in member.topics:
                    assert loads[name] - loads[other] <= 1, f"{name} could give a partition to {other}"


@given(group_specs())
def test_uniform_keeps_a_balanced_assignment(spec: GroupSpec) -> None:
    target = uniform.assign(spec)
    assert uniform.assign(_after(spec, target)) == target


@given(group_specs(homogeneous=True), st.data())
def test_uniform_moves_only_the_partitions_of_a_member_that_left(spec: GroupSpec, data: st.DataObject) -> None:
    if len(spec.members) == 1:
        return
    target = uniform.assign(spec)
    gone = data.draw(st.sampled_from(sorted(spec.members)))
    after = _after(spec, target)
    rest = GroupSpec({name: member for name, member in after.members.items() if name != gone}, spec.partitions)
    new = uniform.assign(rest)
    for name, partitions in new.items():
        assert _pairs(target[name]) <= _pairs(partitions)


@given(group_specs(homogeneous=True))
def test_range_partitions_topics_of_equal_size_alike(spec: GroupSpec) -> None:
    for partitions in range_assignor.assign(spec).values():
        by_size: dict[int, set[frozenset[int]]] = {}
        for topic_id, count in spec.partitions.items():
            by_size.setdefault(count, set()).add(partitions.get(topic_id, frozenset()))
        assert all(len(alike) == 1 for alike in by_size.values())


@given(group_specs())
def test_range_depends_on_instance_ids_where_members_have_them(spec: GroupSpec) -> None:
    renamed = {
        f"renamed-{at}" if member.instance_id is not None else name: member
        for at, (name, member) in enumerate(spec.members.items())
    }
    before, after = range_assignor.assign(spec), range_assignor.assign(spec._replace(members=renamed))
    for (name, member), new_name in zip(spec.members.items(), renamed, strict=True):
        if member.instance_id is not None:
            assert before[name] == after[new_name]


def _subscribers(spec: GroupSpec, topic_id: UUID) -> int:
    return sum(topic_id in member.topics for member in spec.members.values())


def _owners(target: TargetAssignment) -> Counter[tuple[UUID, int]]:
    return Counter(pair for partitions in target.values() for pair in _pairs(partitions))


@given(group_specs(homogeneous=True, shared=True))
def test_simple_gives_every_partition_the_same_number_of_members_and_members_equal_loads(spec: GroupSpec) -> None:
    target = simple.assign(spec)
    assert target.keys() == spec.members.keys()
    everything = {(topic_id, index) for topic_id, count in spec.partitions.items() for index in range(count)}
    expected = -(-len(spec.members) // len(everything)) if everything else 0
    assert _owners(target) == dict.fromkeys(everything, expected)
    loads = [_load(partitions) for partitions in target.values()]
    assert max(loads) - min(loads) <= 1
    assert all(all(partitions.values()) for partitions in target.values()), "a topic without partitions"


@given(group_specs(homogeneous=False, shared=True))
def test_simple_balances_each_topic_of_different_subscriptions(spec: GroupSpec) -> None:
    assume(not spec.is_homogeneous)
    target = simple.assign(spec)
    owners = _owners(target)
    for topic_id, count in spec.partitions.items():
        expected = -(-_subscribers(spec, topic_id) // count)
        assert [owners[topic_id, index] for index in range(count)] == [expected] * count
        members = [name for name, member in spec.members.items() if topic_id in member.topics]
        loads = [len(target[name].get(topic_id, ())) for name in members]
        assert max(loads) - min(loads) <= 1
    assert all(partitions.keys() <= spec.members[name].topics for name, partitions in target.items())


@given(group_specs(shared=True))
def test_simple_keeps_a_balanced_assignment(spec: GroupSpec) -> None:
    target = simple.assign(spec)
    assert simple.assign(_after(spec, target)) == target


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7])
def test_simple_leaves_every_partition_a_live_member_when_one_of_more_members_than_partitions_dies(
    partitions: int,
) -> None:
    """The dead member stays in the group until its session expires; another one replaces it meanwhile."""
    topic_id = TOPICS[0]
    for members in range(partitions, 3 * partitions + 1):
        names = [f"member-{number}" for number in range(members)]
        spec = GroupSpec({name: MemberSpec(frozenset({topic_id})) for name in names}, {topic_id: partitions})
        before = _after(spec, simple.assign(spec))
        replaced = GroupSpec({**before.members, "new": MemberSpec(frozenset({topic_id}))}, before.partitions)
        target = simple.assign(replaced)
        for dead in names:
            live = {pair for name, found in target.items() if name != dead for pair in _pairs(found)}
            assert len(live) == partitions, f"{members} members, {dead} is dead"
