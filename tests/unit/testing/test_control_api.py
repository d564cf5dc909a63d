"""Tests in other languages make faults, move the time and assert by HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ottla.testing import Kafka, kafka
from ottla.testing.kit.control_api.openapi import document
from ottla.testing.kit.control_api.operations import OPERATIONS, Control
from ottla.testing.kit.control_api.server import BODY_BYTES_MAX, serve_control_api

TOKEN = "secret"
ROOT = Path(__file__).parents[3]


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Api:
    """A client of the control API that sends what a test wants."""

    def __init__(self, port: int) -> None:
        self.port = port

    def raw(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, json.loads(response.read() or b"null"), dict(response.getheaders()))
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self._good(self.raw("GET", path))

    def post(self, path: str, **arguments: Any) -> Any:
        return self._good(self.raw("POST", path, json.dumps(arguments).encode()))

    def delete(self, path: str) -> Any:
        return self._good(self.raw("DELETE", path))

    def refused(self, method: str, path: str, status: int = 400, **arguments: Any) -> str:
        answer = self.raw(method, path, json.dumps(arguments).encode() if method == "POST" else None)
        assert (answer.status, answer.body["status"]) == (status, status), answer
        assert answer.headers["content-type"] == "application/problem+json"
        detail: str = answer.body["detail"]
        assert "Traceback" not in detail
        return detail

    @staticmethod
    def _good(answer: Answer) -> Any:
        assert answer.status == 200, answer
        return answer.body


@pytest.fixture(scope="module")
def served() -> Iterator[Api]:
    with kafka(topics={"orders": 2}, brokers=1) as k, socket.create_server(("127.0.0.1", 0)) as listener:
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(
            target=lambda: loop.run_until_complete(serve_control_api(Control(k), listener, TOKEN, stop=stop)),
            daemon=True,
        )
        thread.start()
        yield Api(listener.getsockname()[1])
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture
def api(served: Api) -> Api:
    """The API of brokers that begin again."""
    served.post("/reset")
    return served


def _bootstrap(api: Api) -> str:
    address: str = api.get("/cluster")["bootstrap"]
    return address


def _producer(api: Api, **settings: str) -> Producer:
    return Producer({"bootstrap.servers": _bootstrap(api), "client.id": "shop", **settings})


def _produced(api: Api) -> str:
    """Return the error with which a record was not produced."""
    producer, names = _producer(api), list[str]()
    producer.produce("orders", b"v", on_delivery=lambda error, _: names.append(error.name() if error else ""))
    producer.flush(10)
    return names[0]


# ---- Access


def test_a_request_without_the_token_is_refused(api: Api) -> None:
    for header in ({"Authorization": ""}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
        for path in ("/cluster", "/openapi.json", "/nothing"):
            answer = api.raw("GET", path, headers=header)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_request_for_another_host_is_refused(api: Api) -> None:
    for host in ("example.com", f"example.com:{api.port}", "127.0.0.1", f"127.0.0.1.example.com:{api.port}"):
        answer = api.raw("GET", "/cluster", headers={"Host": host})
        assert (answer.status, answer.body["detail"]) == (403, "the Host header names another host than this listener")
    assert api.raw("GET", "/cluster", headers={"Host": f"localhost:{api.port}"}).status == 200


def test_an_unknown_route_or_method_is_refused(api: Api) -> None:
    assert api.raw("GET", "/nothing").status == 404
    assert api.raw("GET", "/fail").status == 405
    assert api.raw("GET", "/nothing").headers["content-type"] == "application/problem+json"


# ---- HTTP


def _sent(api: Api, raw: bytes, *, responses: int = 1) -> list[tuple[int, bytes]]:
    """Send bytes, and return the statuses and bodies of so many responses."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection:
        connection.sendall(raw.replace(b"HOST", f"127.0.0.1:{api.port}".encode()))
        found = []
        for _ in range(responses):
            response = http.client.HTTPResponse(connection)
            response.begin()
            found.append((response.status, response.read()))
        return found


HEAD = b"Host: HOST\r\nAuthorization: Bearer secret\r\n"


def test_a_connection_serves_one_request_after_the_other(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    connection.connect()
    kept = connection.sock
    for _ in range(3):
        connection.request("GET", "/topics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert json.load(connection.getresponse()) == {"names": ["orders"]}
        assert connection.sock is kept
    connection.close()


def test_a_body_may_come_in_chunks(api: Api) -> None:
    chunked = b"POST /advance HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    ((status, _),) = _sent(api, chunked + b'6\r\n{"ms":\r\n2\r\n 1\r\n1\r\n}\r\n0\r\n\r\n')
    assert status == 200


def test_a_client_that_asks_first_whether_it_may_send_its_body_gets_its_yes(api: Api) -> None:
    raw = b"POST /advance HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection:
        connection.sendall(raw.replace(b"HOST", f"127.0.0.1:{api.port}".encode()))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b'{"ms": 1}')
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /topics HTTP/1.1\r\n\r\n",  # no host
        b"GET /topics HTTP/1.1\r\n" + HEAD + b"Content-Length: x\r\n\r\n",
        b"GET /topics HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    ],
)
def test_what_is_no_request_is_refused(api: Api, raw: bytes) -> None:
    ((status, body),) = _sent(api, raw)
    assert (status // 100, json.loads(body)["status"]) == (4, status)
    assert api.get("/topics") == {"names": ["orders"]}


def test_a_request_without_the_token_is_refused_before_its_body_comes(api: Api) -> None:
    ((status, _),) = _sent(api, b"POST /produce HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1000\r\n\r\n")
    assert status == 401


def test_only_so_many_connections_are_served(api: Api) -> None:
    held = [socket.create_connection(("127.0.0.1", api.port)) for _ in range(101)]
    answer = api.raw("GET", "/topics")
    assert (answer.status, answer.body["detail"]) == (503, "there are 100 connections already")
    for each in held:
        each.close()


# ---- Arguments


def test_a_wrong_argument_is_refused_by_the_name_of_its_field(api: Api) -> None:
    refused = api.refused
    assert refused("POST", "/fail", error="NOT_LEADER_OR_FOLLOWER") == "api: it is missing"
    assert refused("POST", "/fail", api=7, error="X") == "api: text is needed, not a number"
    assert refused("POST", "/fail", api="Produce", error="X", partition=True).startswith(
        "partition: a whole number is needed, not true or false"
    )
    assert refused("POST", "/advance", seconds="5") == "seconds: a number is needed, not text"
    assert refused("POST", "/advance", seconds=-1) == "seconds: -1 is not from 0 to 1e+09"
    assert refused("POST", "/advance", years=1).startswith("years: it is unknown; known are: days, hours")
    assert refused("POST", "/topics", name="t", configs={"retention.ms": 5}).startswith("configs.retention.ms: text")
    assert refused("POST", "/produce", topic="orders", records={}) == "records: a list is needed, not an object"
    assert refused("POST", "/produce", topic="orders", records=[{"value": 5}]).startswith("records[0].value: text")
    assert refused("POST", "/produce", topic="orders", records=[{"value_base64": "?"}]).startswith(
        "records[0].value_base64: base64"
    )
    assert refused("POST", "/partition-network", sides=[[1], [None]]).startswith("sides[1][0]: a whole number or text")
    assert refused("GET", "/topics/orders/records?partition=one").startswith("partition: a whole number is needed")
    assert refused("GET", "/topics/orders/records?isolation=none").startswith("isolation: one of read_committed")
    assert refused("GET", "/requests?limit=0") == "limit: 0 is not from 1 to 10000"
    assert refused("DELETE", "/faults/x").startswith("id: a whole number is needed, not 'x'")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "the body: an object is needed, not a list"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"ms": NaN}', "NaN is not a number of JSON"),
        (b'{"ms": 1e400}', "ms: the number is too large"),
        (b'{"ms": ' + b"9" * 5000 + b"}", "the body is not JSON"),
        (b'{"ms": ' + b"9" * 400 + b"}", "ms: the number is too large"),
    ],
)
def test_a_body_that_is_no_object_of_arguments_is_refused(api: Api, body: bytes, detail: str) -> None:
    answer = api.raw("POST", "/advance", body)
    assert answer.status == 400
    assert detail in answer.body["detail"]


def test_text_that_is_no_unicode_is_refused(api: Api) -> None:
    answer = api.raw("POST", "/topics", b'{"name": "\\ud800"}')
    assert (answer.status, answer.body["detail"]) == (400, "name: half of a surrogate pair is no text")


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    connection.putrequest("POST", "/produce")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", str(BODY_BYTES_MAX * 2))
    connection.endheaders()
    connection.send(b"x" * (BODY_BYTES_MAX + 1))
    assert connection.getresponse().status == 413
    connection.close()


def test_an_operation_that_fails_unexpectedly_shows_no_traceback(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def log(k: Kafka) -> str:
        raise ZeroDivisionError("of the brokers")

    monkeypatch.setattr(Kafka, "log", property(log))
    assert api.refused("GET", "/log", 500) == "ZeroDivisionError; the log has more"


def test_what_does_not_exist_is_not_found(api: Api) -> None:
    assert "did you mean 'orders'" in api.refused("GET", "/topics/order", 404)
    assert "no group 'g'" in api.refused("GET", "/groups/g", 404)
    assert "no fault 99" in api.refused("GET", "/faults/99", 404)
    assert "no topic 'order'" in api.refused("POST", "/produce", 404, topic="order", records=[])


def test_what_the_brokers_refuse_is_refused_with_their_reason(api: Api) -> None:
    assert "no API 'Prodce'; did you mean 'Produce'?" in api.refused(
        "POST", "/fail", api="Prodce", error="UNKNOWN_SERVER_ERROR"
    )
    assert "TOPIC_ALREADY_EXISTS" in api.refused("POST", "/topics", name="orders")
    assert "INVALID_TOPIC_EXCEPTION" in api.refused("POST", "/topics", name="..")
    assert api.refused("POST", "/up", broker=1) == "broker 1 is not down; there are [1]"
    assert api.refused("POST", "/down", broker=7) == "broker 7 does not run; there are [1]"


# ---- Operations


def test_records_are_produced_and_read(api: Api) -> None:
    records = [
        {"key": "21", "value": "ä", "headers": [{"key": "h", "value": "x"}, {"key": "e"}], "timestamp_ms": 9},
        {"value_base64": "/w==", "partition": 1},
        {"key": "21"},
    ]
    made = api.post("/produce", topic="orders", records=records)["records"]
    partition = made[0]["partition"]
    assert [each["topic"] for each in made] == ["orders"] * 3
    assert made[2]["offset"] == made[0]["offset"] + 1
    (first, *_), last = api.get(f"/topics/orders/records?partition={partition}")["records"], None
    assert first == {
        "topic": "orders",
        "partition": partition,
        "offset": 0,
        "timestamp_ms": 9,
        "key": "21",
        "value": "ä",
        "headers": [{"key": "h", "value": "x"}, {"key": "e", "value": None}],
    }
    everything = api.get("/topics/orders/records?isolation=read_uncommitted")["records"]
    assert len(everything) == 3
    (last,) = [each for each in everything if "value_base64" in each]
    assert (last["value_base64"], last["key"], last["partition"]) == ("/w==", None, 1)


def test_topics_are_created_and_described(api: Api) -> None:
    made = api.post("/topics", name="bills", partitions=3, configs={"retention.ms": "5000"})
    assert (len(made["partitions"]), made["config"]["retention.ms"]) == (3, "5000")
    assert api.get("/topics") == {"names": ["bills", "orders"]}
    assert api.get("/topics/bills")["offsets"]["2"] == {"start": 0, "end": 0, "last_stable": 0}


def test_requests_fail_until_the_fault_is_removed(api: Api) -> None:
    fault = api.post("/fail", api="Produce", error="TOPIC_AUTHORIZATION_FAILED", topic="orders")
    assert fault["count"] == 0
    assert _produced(api) == "TOPIC_AUTHORIZATION_FAILED"
    assert api.get(f"/faults/{fault['id']}?count=1")["count"] == 1
    (request,) = api.get("/requests?api=Produce&client_id=shop")["requests"]
    assert (request["is_answered"], request["errors"]) == (True, ["TOPIC_AUTHORIZATION_FAILED"])
    assert request["faults"] == [fault["what"]]
    api.delete(f"/faults/{fault['id']}")
    assert api.get("/faults") == []
    assert _produced(api) == ""


def test_a_wait_for_a_fault_that_does_not_happen_is_refused(api: Api) -> None:
    fault = api.post("/drop", api="Fetch", times=1)
    detail = api.refused("GET", f"/faults/{fault['id']}?count=1&timeout_s=0.05")
    assert detail.endswith("has happened 0 times, not 1")
    api.delete("/faults")
    assert api.get("/faults") == []


def test_a_response_that_a_test_gives_is_the_clients(api: Api) -> None:
    invented = {"group_id": "invented", "protocol_type": "consumer", "group_state": "Stable"}
    fault = api.post("/answer", api="ListGroups", response={"groups": [invented]})
    admin = AdminClient({"bootstrap.servers": _bootstrap(api)})
    listed = admin.list_consumer_groups(request_timeout=10).result()
    assert [group.group_id for group in listed.valid] == ["invented"]
    assert api.get(f"/faults/{fault['id']}")["count"] == 1


def test_a_response_that_cannot_be_one_is_the_failure_of_its_fault(api: Api) -> None:
    fault = api.post("/answer", api="Metadata", response={"toppics": []})
    _producer(api).list_topics(timeout=10)
    failure = api.get(f"/faults/{fault['id']}?count=1")["failure"]
    assert "toppics" in failure


def test_the_time_is_moved_on(api: Api) -> None:
    api.post("/topics", name="short", configs={"retention.ms": "3600000"})
    api.post("/produce", topic="short", records=[{"value": "v"}])
    before_ms = api.get("/cluster")["now_ms"]
    api.post("/advance", hours=2)
    assert api.get("/topics/short")["offsets"]["0"]["start"] == 1
    assert api.get("/cluster")["now_ms"] >= before_ms + 2 * 3_600_000


def test_a_broker_is_stopped_and_started(api: Api) -> None:
    address = _bootstrap(api)
    api.post("/down", broker=1, killed=True)
    assert api.get("/cluster")["brokers"] == {}
    assert "no broker runs" in api.refused("GET", "/topics")
    api.post("/up", broker=1)
    assert api.get("/cluster")["brokers"] == {"1": address}


def test_groups_and_transactions_are_described(api: Api) -> None:
    producer = _producer(api, **{"transactional.id": "tx"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=0)
    producer.flush()
    (transaction,) = api.get("/transactions")["transactions"]
    assert (transaction["state"], transaction["partitions"]) == ("Ongoing", [{"topic": "orders", "partition": 0}])
    producer.commit_transaction()
    consumer = KafkaConsumer(
        {"bootstrap.servers": _bootstrap(api), "group.id": "g", "auto.offset.reset": "earliest", "client.id": "reader"}
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(10)
    assert message is not None
    consumer.commit(message=message, asynchronous=False)
    group = api.get("/groups/g")
    assert (group["type"], group["state"], len(group["members"])) == ("classic", "Stable", 1)
    assert group["members"][0]["assignment"][0] == {"topic": "orders", "partition": 0}
    assert group["partitions"][0]["committed"] == 1
    assert api.get("/groups") == {"names": ["g"]}
    assert api.post("/expire", group="g")["count"] == 1
    assert api.post("/fence", transactional_id="tx")["count"] == 1
    consumer.close()


def test_a_group_begins_where_a_test_has_committed(api: Api) -> None:
    offsets = [{"topic": "orders", "partition": 0, "offset": 0}]
    state = api.post("/groups/a%2Fb%20c/commit", offsets=offsets)
    assert state == api.get("/groups/a%2Fb%20c")
    assert (state["group_id"], state["state"]) == ("a/b c", "Empty")
    assert [(each["topic"], each["committed"]) for each in state["partitions"]] == [("orders", 0)]
    assert "no partition 7" in api.refused("POST", "/groups/g/commit", 404, offsets=[{**offsets[0], "partition": 7}])


def test_disks_fail_and_recover(api: Api) -> None:
    api.post("/produce", topic="orders", records=[{"value": "v", "partition": 0}])
    api.post("/disk/lose-unsynced")
    assert len(api.get("/topics/orders/records")["records"]) == 1
    slow = api.post("/disk/slow", ms=1)
    api.post("/produce", topic="orders", records=[{"value": "v", "partition": 0}])
    assert api.get(f"/faults/{slow['id']}?count=1")["count"] >= 1
    full = api.post("/disk/full")
    assert "STORAGE_ERROR" in api.refused("POST", "/produce", topic="orders", records=[{"value": "v"}])
    api.delete(f"/faults/{full['id']}")
    assert "no 'seek'" in api.refused("POST", "/disk/fail", operation="seek")


def test_a_reset_begins_again(api: Api) -> None:
    address = _bootstrap(api)
    api.post("/topics", name="bills")
    api.post("/fail", api="Produce", error="UNKNOWN_SERVER_ERROR")
    api.post("/down", broker=1)
    assert api.post("/reset")["bootstrap"] == address
    assert api.get("/topics") == {"names": ["orders"]}
    assert api.get("/faults") == []
    assert api.get("/requests") == {"requests": []}


def test_connections_are_cut_and_delayed(api: Api) -> None:
    producer = _producer(api)
    producer.produce("orders", b"v")
    assert producer.flush(10) == 0
    assert api.post("/cut", client_id="shop")["count"] >= 1
    delay = api.post("/delay", api="Metadata", ms=10, times=1, client_id="shop")
    producer.list_topics(timeout=10)
    assert api.get(f"/faults/{delay['id']}?count=1")["count"] == 1


# ---- The description


def test_the_description_is_served_and_a_copy_is_in_the_documentation(api: Api) -> None:
    served = api.get("/openapi.json")
    assert served == json.loads(json.dumps(document()))
    text = (ROOT / "docs" / "control-api.json").read_text(encoding="utf-8")
    assert json.loads(text) == served, "make generate"


def test_the_description_has_each_operation_with_its_arguments() -> None:
    paths = document()["paths"]
    for operation in OPERATIONS:
        described = paths[operation.path][operation.method.lower()]
        named = {each["name"] for each in described.get("parameters", ())}
        if operation.method == "POST":
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            named |= {name for name in schema["properties"] if not name.endswith("_base64")}
            assert schema["additionalProperties"] is False
        assert named == {field.name for field in operation.signature.arguments}
        assert described["summary"].endswith(".")


def test_the_table_covers_each_method_of_the_kit_that_has_a_meaning_in_other_languages() -> None:
    of_python = {"start", "stop", "topic", "group", "wait_until", "wait_until_async", "brokers", "bootstrap", "disk"}
    of_other_names = {"produce_many": "produce", "requests_dropped": "requests", "now_ms": "cluster"}
    kits = {name for name in vars(Kafka) if not name.startswith("_")} - of_python
    covered = {operation.run.__name__ for operation in OPERATIONS}
    assert {of_other_names.get(name, name) for name in kits} <= covered
