"""An order has one invoice, also if a process that seemed to be dead goes on."""

from contextlib import suppress

import pytest
from confluent_kafka import KafkaException
from shop.transfers import Invoicing


@pytest.mark.kafka(topics=["orders", "invoices"])
def test_a_process_that_was_replaced_writes_no_second_invoice(kafka):
    kafka.produce("orders", "order 1")
    first = Invoicing(kafka.bootstrap)
    first.begin()  # and then it hangs

    second = Invoicing(kafka.bootstrap)
    second.begin()
    second.commit()
    with suppress(KafkaException):  # fenced
        first.commit()
    kafka.wait_until(lambda: not any(transaction.is_open for transaction in kafka.transactions()))
    assert kafka.topic("invoices").records().values() == [b"invoice of order 1"]
    first.close()
    second.close()
