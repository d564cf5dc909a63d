"""A notice that no broker will ever take is given up."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException
from shop.notices import send


@pytest.mark.kafka(topics=["notices"])
def test_a_notice_that_is_refused_for_good_is_given_up(kafka):
    with ThreadPoolExecutor(1) as threads:
        with kafka.fail("Produce", "INVALID_RECORD", topic="notices") as refused:
            sent = threads.submit(send, kafka.bootstrap, b"your parcel is there")
            kafka.wait_until(lambda: sent.done() or refused.count > 10)
        assert refused.count <= 10
        with pytest.raises(KafkaException, match="INVALID_RECORD"):
            sent.result()
