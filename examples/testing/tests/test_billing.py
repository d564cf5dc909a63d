"""An order that could not be charged is charged by the next start."""

import pytest
from shop.billing import bill_next


@pytest.mark.kafka(topics=["orders"])
def test_an_order_is_charged_after_a_crash(kafka):
    kafka.produce("orders", "order 1")
    charged = []

    def crash(order):
        raise ConnectionError("the bank does not answer")

    with pytest.raises(ConnectionError):
        bill_next(kafka.bootstrap, crash)
    bill_next(kafka.bootstrap, charged.append, timeout=3)
    assert charged == [b"order 1"]
    assert kafka.group("billing").lag() == 0
