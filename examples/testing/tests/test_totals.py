"""All payments are added up, those of a transaction too."""

import pytest
from confluent_kafka import Producer
from shop.totals import total


@pytest.mark.kafka(topics=["payments"])
def test_payments_of_a_transaction_are_added_up(kafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "till"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for payment in ("5", "7"):
        producer.produce("payments", payment)
    producer.commit_transaction(10)
    kafka.wait_until(lambda: len(kafka.topic("payments").records()) == 2)
    assert total(kafka.bootstrap, timeout=3) == 12
