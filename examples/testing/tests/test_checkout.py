"""An order is there once, also if the response to the producer is lost and it sends the order again."""

import pytest
from shop.checkout import place


@pytest.mark.kafka(topics=["orders"])
def test_an_order_whose_response_is_lost_is_placed_once(kafka):
    with kafka.cut("Produce", times=1) as lost:
        place(kafka.bootstrap, b"order 1")
    assert lost.count == 1
    assert kafka.topic("orders").records().values() == [b"order 1"]
