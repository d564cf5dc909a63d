"""What groups with server-side assignment see of the cluster's topics."""

from __future__ import annotations

from uuid import UUID

from ottla.groups.assignors import range_assignor
from ottla.groups.modern.target_assignment import MemberSubscription, compute_target
from ottla.groups.modern.topics import NO_METADATA_HASH, TopicsImage, group_metadata_hash
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView


def _topic(name: str, partitions: int, number: int, replica: int = 0) -> TopicView:
    parts = tuple(PartitionView(index, 0, 0, (replica,), (replica,), 0) for index in range(partitions))
    return TopicView(name, UUID(int=number), parts, {}, 0, 0)


def _brokers(*racks: str | None) -> dict[int, BrokerInfo]:
    return {number: BrokerInfo(number, {}, rack, 0, {}) for number, rack in enumerate(racks)}


def _view(*topics: TopicView, racks: tuple[str | None, ...] = (None,)) -> ClusterView:
    return ClusterView(brokers=_brokers(*racks)).with_topics({topic.name: topic for topic in topics})


def test_the_hash_changes_with_the_number_of_partitions_the_id_and_the_racks() -> None:
    hashes = {
        group_metadata_hash(["web"], TopicsImage(view))
        for view in (
            _view(_topic("web", 2, 1)),
            _view(_topic("web", 3, 1)),
            _view(_topic("web", 2, 9)),
            _view(_topic("web", 2, 1), racks=("a",)),
            _view(_topic("web", 2, 1), racks=("b",)),
        )
    }
    assert len(hashes) == 5


def test_the_hash_does_not_change_with_a_leader_a_foreign_topic_or_the_order_of_names() -> None:
    web, app = _topic("web", 2, 1), _topic("app", 2, 2)
    before = TopicsImage(_view(web, app))
    moved = web._replace(partitions=tuple(PartitionView(part.index, 0, 5, (0,), (0,), 7) for part in web.partitions))
    after = before.followed_by(_view(moved, app, _topic("new", 1, 3)))
    assert group_metadata_hash(["web", "app"], before) == group_metadata_hash(["app", "web"], after)


def test_a_group_without_existing_topics_has_the_hash_zero() -> None:
    assert group_metadata_hash(["missing"], TopicsImage(_view())) == NO_METADATA_HASH


def test_the_version_grows_with_new_topics_alone() -> None:
    image = TopicsImage(_view(_topic("web", 2, 1)))
    more_partitions = image.followed_by(_view(_topic("web", 3, 1)))
    new_topic = more_partitions.followed_by(_view(_topic("web", 3, 1), _topic("app", 1, 2)))
    assert (more_partitions.version, new_topic.version) == (image.version, image.version + 1)


def test_changed_topics_are_found_after_creation_deletion_change_and_a_new_rack() -> None:
    web, app = _topic("web", 2, 1), _topic("app", 1, 2)
    image = TopicsImage(_view(web, app))
    assert image.changed_since(image) == frozenset()
    assert image.followed_by(_view(web)).changed_since(image) == {"app"}
    assert image.followed_by(_view(web, app, _topic("new", 1, 3))).changed_since(image) == {"new"}
    assert image.followed_by(_view(_topic("web", 3, 1), app)).changed_since(image) == {"web"}
    assert image.followed_by(_view(web, app, racks=("a",))).changed_since(image) == {"web", "app"}


def test_a_target_leaves_out_topics_that_do_not_exist() -> None:
    image = TopicsImage(_view(_topic("web", 2, 1)))
    target = compute_target(range_assignor.assign, {"m1": MemberSubscription(["web", "missing"])}, {}, image)
    assert target == {"m1": {UUID(int=1): frozenset({0, 1})}}
    assert image.name_of(UUID(int=1)) == "web"
    assert image.name_of(UUID(int=7)) is None
