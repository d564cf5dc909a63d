"""An order is reported in the hour in which it was made, not in which it arrived."""

from shop.reports import HOUR_MS, create, orders_of, place


def test_an_order_that_arrives_late_is_in_the_hour_in_which_it_was_made(kafka):
    create(kafka.bootstrap)
    made_at_ms = kafka.now_ms()
    place(kafka.bootstrap, b"in time", made_at_ms)
    kafka.advance(hours=2)
    place(kafka.bootstrap, b"late", made_at_ms)
    assert orders_of(kafka.bootstrap, made_at_ms // HOUR_MS * HOUR_MS) == [b"in time", b"late"]
