"""An order is packed once, also if another member takes over its partition in between."""

from itertools import chain

import pytest
from shop.parcels import Packer


@pytest.mark.kafka(topics={"orders": 2})
def test_an_order_is_packed_once_when_a_member_joins(kafka):
    parcels = []
    first = Packer(kafka.bootstrap, parcels)
    kafka.wait_until(first.poll)
    for partition in (0, 1):
        kafka.produce("orders", f"order {partition}", partition=partition)
    kafka.wait_until(lambda: first.poll() and len(first.orders) == 2)

    second = Packer(kafka.bootstrap, parcels)
    kafka.wait_until(lambda: [first.poll(), second.poll()] == [True, True])
    kafka.produce("orders", "order 2", partition=0)
    kafka.produce("orders", "order 3", partition=1)
    taken = lambda: {*first.orders, *second.orders, *chain(*parcels)}  # noqa: E731
    kafka.wait_until(lambda: [first.poll(), second.poll()] and {b"order 2", b"order 3"} <= taken())
    first.close()
    second.close()

    packed = sorted(order for parcel in parcels for order in parcel)
    assert packed == [b"order 0", b"order 1", b"order 2", b"order 3"]
