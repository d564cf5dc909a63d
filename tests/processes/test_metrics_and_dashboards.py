"""A cluster under a load of confluent-kafka is scraped by a real Prometheus, and the dashboards show something.

The cluster is that of `make cluster`. The queries are those of our dashboard, of kafka_exporter's (from its
repository), and of what kminion documents, by each label: its own dashboards (14012 to 14014 at Grafana) are in no
repository whose text could be read, so that only the metrics they can be made of are held here.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port, free_ports
from tests.support.prometheus import RULES, program
from tests.support.scrapes import Scraped
from tests.support.up_process import UpProcess

pytestmark = [pytest.mark.external, pytest.mark.slow]

DASHBOARD = Path(__file__).parents[2] / "packaging" / "grafana" / "ottla.json"
VARIABLES = {"$job": ".*", "$instance": ".*", "$topic": ".*", "$__rate_interval": "1m"}
WITHIN_S = 60.0

OF_KAFKA_EXPORTER = (
    'sum(rate(kafka_topic_partition_current_offset{instance=~"$instance", topic=~"$topic"}[1m])) by (topic)',
    'sum(kafka_consumergroup_lag{instance=~"$instance",topic=~"$topic"}) by (consumergroup, topic)',
    "sum(delta(kafka_topic_partition_current_offset{instance=~'$instance', topic=~\"$topic\"}[5m])/5) by (topic)",
    "sum(delta(kafka_consumergroup_current_offset{topic=~'$topic'}[5m])/5) by (consumergroup, topic)",
    'sum by(topic) (kafka_topic_partitions{instance=~"$instance",topic=~"$topic"})',
)
OF_KMINION = (
    'kminion_exporter_up{version!=""}',
    'kminion_kafka_broker_info{address!="",broker_id!="",is_controller="true",port!=""}',
    'kminion_kafka_cluster_info{broker_count="3",cluster_id!="",cluster_version!="",controller_id!=""}',
    'kminion_kafka_broker_log_dir_size_total_bytes{address!="",broker_id!="",port!=""}',
    'kminion_kafka_topic_log_dir_size_total_bytes{topic_name="orders"}',
    'kminion_kafka_topic_info{cleanup_policy="delete",partition_count="3",replication_factor="3",topic_name="orders"}',
    'kminion_kafka_topic_partition_low_water_mark{partition_id="0",topic_name="orders"}',
    'kminion_kafka_topic_low_water_mark_sum{topic_name="orders"}',
    'kminion_kafka_topic_partition_high_water_mark{partition_id="0",topic_name="orders"}',
    'sum(rate(kminion_kafka_topic_high_water_mark_sum{topic_name="orders"}[1m]))',
    'kminion_kafka_consumer_group_info{coordinator_id!="",group_id="billing",protocol!="",protocol_type="consumer"}',
    'kminion_kafka_consumer_group_members{group_id="billing"}',
    'kminion_kafka_consumer_group_empty_members{group_id="billing"}',
    'kminion_kafka_consumer_group_topic_members{group_id="billing",topic_name="orders"}',
    'kminion_kafka_consumer_group_topic_assigned_partitions{group_id="billing",topic_name="orders"}',
    'kminion_kafka_consumer_group_topic_offset_sum{group_id="billing",topic_name="orders"}',
    'kminion_kafka_consumer_group_topic_partition_lag{group_id="billing",partition_id="0",topic_name="orders"}',
    'kminion_kafka_consumer_group_topic_lag{group_id="billing",topic_name="orders"}',
    'kminion_kafka_consumer_group_offset_commits_total{group_id="billing"}',
    "kminion_end_to_end_messages_produced_total",
    "kminion_end_to_end_messages_received_total",
    'kminion_end_to_end_messages_lost_total{partition_id="0"}',
    'kminion_end_to_end_messages_produced_failed_total{partition_id="0"}',
    'kminion_end_to_end_messages_produced_in_flight{partition_id="0"}',
    'kminion_end_to_end_produce_latency_seconds_bucket{partitionId="0",le="+Inf"}',
    'kminion_end_to_end_roundtrip_latency_seconds_bucket{partitionId="0",le="+Inf"}',
)

OF_JMX_EXPORTER = (
    "count(kafka_server_replicamanager_leadercount)",
    "sum(kafka_controller_kafkacontroller_activecontrollercount)",
    'sum(rate(kafka_server_brokertopicmetrics_bytesout_total{topic!=""}[1m])) by (instance)',
    'sum(rate(kafka_server_brokertopicmetrics_bytesin_total{topic!=""}[1m])) by (instance)',
    'sum(rate(kafka_server_brokertopicmetrics_messagesin_total{topic!=""}[1m])) by (topic)',
    "sum(kafka_server_replicamanager_underreplicatedpartitions)",
    "sum(kafka_controller_kafkacontroller_offlinepartitionscount)",
    'kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"}',
)
"""Of dashboards for Kafka's own names, as Grafana's 18276."""


def queries_of_dashboard() -> list[str]:
    """Return the queries of our dashboard."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


class Prometheus:
    """A Prometheus that scrapes brokers each second."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        self.port = free_port()
        directory.mkdir()
        (directory / "ottla.rules.yml").write_bytes(RULES.read_bytes())
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["ottla.rules.yml"],
            "scrape_configs": [{"job_name": "ottla", "static_configs": [{"targets": targets}]}],
        }
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def samples(self, query: str) -> list[Any]:
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        found: list[Any] = self.get("query", query=query)["result"]
        return found

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OttlaProcess, str]]:
    http = f"127.0.0.1:{free_port()}"
    options = {"ottla.http.listener": http, "ottla.metrics.probe.interval.ms": "200"}
    arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    process = OttlaProcess(tmp_path_factory.mktemp("broker"), options=arguments).start()
    yield process, http
    process.stop()


def _get(http: str, path: str, accept: str = "*/*") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{http}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.status, response.read().decode()


def test_a_broker_that_serves_is_alive_and_ready(broker: tuple[OttlaProcess, str]) -> None:
    assert _get(broker[1], "/livez") == (200, '{"live": true, "reasons": []}')
    assert _get(broker[1], "/readyz") == (200, '{"ready": true, "reasons": []}')


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[UpProcess, list[str]]]:
    port = free_ports(3)
    options = ("ottla.metrics.probe.interval.ms=200", "offsets.topic.num.partitions=3")
    up = UpProcess(tmp_path / "up", options=options, arguments=("--metrics-port", str(port))).start()
    yield up, [f"127.0.0.1:{port + number}" for number in range(3)]
    up.stop()


@pytest.mark.xdist_group("cluster")
def test_the_dashboards_show_something_after_make_cluster_and_a_load(
    cluster: tuple[UpProcess, list[str]], tmp_path: Path
) -> None:
    up, targets = cluster
    admin = AdminClient({"bootstrap.servers": up.bootstrap})
    for future in admin.create_topics([NewTopic("orders", 3)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": up.bootstrap})
    consumer = Consumer(
        {
            "bootstrap.servers": up.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        }
    )
    consumer.subscribe(["orders"])
    prometheus = Prometheus(tmp_path / "prometheus", targets)
    try:
        left = [*queries_of_dashboard(), *OF_KAFKA_EXPORTER, *OF_KMINION, *OF_JMX_EXPORTER]
        assert len(left) > 50
        deadline = time.monotonic() + WITHIN_S
        while left and time.monotonic() < deadline:
            for number in range(100):
                producer.produce("orders", b"v", str(number).encode())
            producer.flush(10)
            consumer.consume(100, 0.2)
            try:
                left = [query for query in left if not prometheus.samples(query)]
            except OSError:  # it starts
                continue
        assert left == []
        scraped = prometheus.get("targets")["activeTargets"]
        assert [target["lastError"] for target in scraped] == [""] * 3
        firing = prometheus.samples('ALERTS{alertstate="firing"}')
        assert firing == []
    finally:
        consumer.close()
        prometheus.stop()
    sent, bytes_out = 0.0, 0.0
    for target in targets:
        page = Scraped(_get(target, "/metrics")[1])
        sent += sum(page.having("kafka_server_brokertopicmetrics_messagesin_total", topic="orders").values())
        bytes_out += sum(page.having("kafka_server_brokertopicmetrics_bytesout_total", topic="orders").values())
    assert sent >= 100
    assert bytes_out > 0


def test_what_consumers_got_is_counted_by_topic_from_files_too(broker: tuple[OttlaProcess, str]) -> None:
    """Regions above 16 KiB are sent from the file; throttling empties a response, and another topic has its own."""
    process, http = broker
    producer = Producer({"bootstrap.servers": process.bootstrap, "linger.ms": 50})
    for topic, count, size in (("large", 100, 10_000), ("small", 1, 10)):
        for _ in range(count):
            producer.produce(topic, b"v" * size)
        assert producer.flush(20) == 0
        consumer = Consumer(
            {"bootstrap.servers": process.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        assert len(consumer.consume(count, 30)) == count
        consumer.close()
    page = Scraped(_get(http, "/metrics")[1])
    name = "kafka_server_brokertopicmetrics_bytesout_total"
    large, small = page.value(name, topic="large"), page.value(name, topic="small")
    assert 1_000_000 <= large < 4_000_000  # a client that fetched too much drops it and fetches again
    assert 10 <= small < 10_000
    assert page.value(name) >= large + small


def test_errors_are_counted_by_api_and_code(broker: tuple[OttlaProcess, str]) -> None:
    process, http = broker
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    for _ in range(2):
        created = admin.create_topics([NewTopic("twice", 1)])["twice"]
        error = created.exception(30)
    assert "already exists" in str(error)
    page = Scraped(_get(http, "/metrics")[1])
    labels = {"request": "CreateTopics", "error": "TOPIC_ALREADY_EXISTS"}
    assert page.value("kafka_network_requestmetrics_errors_total", **labels) == 1


def test_a_page_is_what_promtool_wants(broker: tuple[OttlaProcess, str]) -> None:
    process, http = broker
    producer = Producer({"bootstrap.servers": process.bootstrap})
    producer.produce("orders", b"v")
    assert producer.flush(20) == 0
    page = Scraped(_get(http, "/metrics")[1])
    requests = page.having("kafka_network_requestmetrics_totaltimems_count", request="Produce")
    assert sum(requests.values()) >= 1
    lint = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=_get(http, "/metrics")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error while linting" not in lint.stderr
