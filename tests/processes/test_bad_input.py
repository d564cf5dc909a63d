"""What a broker does with bytes that no good client sends: it refuses them, alone, briefly, and in bounded memory."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.batches import batch, numbered
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until, usage
from tests.support.wire_client import KEYS, ConnectionEnded, Wire, encode

pytestmark = pytest.mark.slow
MIB = 1 << 20
MAY_GROW_BYTES = 64 * MIB


class Witness(threading.Thread):
    """A good client that goes on all the while; whatever it notices is a fault."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.over = port, threading.Event()
        self.served, self.slowest_s = 0, 0.0
        self.noticed: BaseException | None = None

    def run(self) -> None:
        try:
            with Wire(self.port, timeout_s=20) as wire:
                part = {"index": 0, "records": batch(numbered(3))}
                while not self.over.is_set():
                    began = time.monotonic()
                    said = wire.call(
                        "produce", 9, acks=-1, timeout=5000, topic_data=[{"name": "witness", "partition_data": [part]}]
                    )
                    assert said["responses"][0]["partition_responses"][0]["error_code"] == 0, said
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.served += 1
        except (OSError, ConnectionEnded, AssertionError) as error:
            self.noticed = error


@pytest.fixture
def witness(ottla_server: OttlaProcess) -> Iterator[Witness]:
    """The good client; at the end it must have noticed nothing, and the broker must not have grown."""
    with Wire(ottla_server.port) as wire:
        new = {"name": "witness", "num_partitions": 1, "replication_factor": 1}
        assert wire.call("create_topics", 5, topics=[new], timeout=5000)["topics"][0]["error_code"] == 0
    good = Witness(ottla_server.port)
    good.start()
    until(lambda: good.served > 0 or good.noticed is not None, what="the witness being served")
    before = usage(ottla_server.pid)
    yield good
    served = good.served
    until(lambda: good.served > served or good.noticed is not None, what="the witness being served afterwards")
    good.over.set()
    good.join(20)
    assert good.noticed is None
    assert good.slowest_s < 5.0
    after = usage(ottla_server.pid)
    assert after.rss_bytes - before.rss_bytes < MAY_GROW_BYTES, (
        f"grew by {(after.rss_bytes - before.rss_bytes) / MIB:.0f} MiB"
    )
    ottla_server.assert_log_is_clean()


def ends(wire: Wire, *, within_s: float = 15.0) -> bool:
    """Whether the broker closes the connection, whatever it says first."""
    wire.socket.settimeout(within_s)
    try:
        while wire.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def shut(wire: Wire) -> None:
    """Say that nothing more will come, so that a broker still waiting for bytes can end too."""
    try:
        wire.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_random_frames_end_their_connection_and_nothing_else(ottla_server: OttlaProcess, witness: Witness) -> None:
    chance = random.Random(20_251)
    for _ in range(400):
        with Wire(ottla_server.port) as wire:
            wire.send_frame(chance.randbytes(chance.choice([0, 1, 4, 8, 14, 60, 500, 5000])))
            shut(wire)
            assert ends(wire)


def good_frames() -> list[bytes]:
    """One right request of many APIs at their oldest and newest versions."""
    part = {"index": 0, "records": batch(numbered(5))}
    produce = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "witness", "partition_data": [part]}]}
    fetch_part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    fetch = {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "replica_id": -1,
        "session_epoch": -1,
        "topics": [{"topic": "witness", "partitions": [fetch_part]}],
    }
    join = {
        "group_id": "g",
        "session_timeout": 6000,
        "rebalance_timeout": 6000,
        "member_id": "",
        "protocol_type": "x",
        "protocols": [{"name": "p", "metadata": b"m"}],
    }
    wanted: list[tuple[str, int, dict[str, Any]]] = [
        ("produce", 3, produce),
        ("produce", 9, produce),
        ("produce", 12, produce),
        ("fetch", 4, fetch),
        ("fetch", 12, fetch),
        ("metadata", 0, {"topics": [{"name": "witness"}]}),
        ("metadata", 12, {"topics": [{"name": "witness"}]}),
        (
            "list_offsets",
            1,
            {
                "replica_id": -1,
                "topics": [{"name": "witness", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            },
        ),
        (
            "list_offsets",
            8,
            {
                "replica_id": -1,
                "topics": [{"name": "witness", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            },
        ),
        ("join_group", 0, join),
        ("join_group", 9, join),
        ("find_coordinator", 4, {"coordinator_keys": ["g"]}),
        (
            "offset_commit",
            8,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "topics": [{"name": "witness", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
            },
        ),
        ("offset_fetch", 8, {"groups": [{"group_id": "g", "topics": None}]}),
        ("create_topics", 7, {"topics": [{"name": "a/b"}]}),
        ("describe_configs", 4, {"resources": [{"resource_type": 2, "resource_name": "witness"}]}),
        ("api_versions", 3, {"client_software_name": "a", "client_software_version": "b"}),
        ("describe_cluster", 1, {"endpoint_type": 1}),
        (
            "incremental_alter_configs",
            1,
            {"resources": [{"resource_type": 2, "resource_name": "none", "configs": [{"name": "a", "value": "b"}]}]},
        ),
    ]
    return [encode(api, version, 7, fields) for api, version, fields in wanted]


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """A right frame with something wrong: bits, lengths, cut, doubled."""
    wrong = bytearray(frame)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(8, len(wrong))
        match chance.randrange(5):
            case 0:
                wrong[at] ^= 1 << chance.randrange(8)
            case 1:
                wrong[at] = chance.randrange(256)
            case 2 if len(wrong) - at >= 4:
                wrong[at : at + 4] = chance.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\xff\xff\xff"]
                )
            case 3:
                del wrong[max(at, 12) :]
            case _:
                wrong[at:at] = wrong[at : at + chance.randrange(1, 40)]
        if len(wrong) <= 12:
            break
    return bytes(wrong)


def test_mutated_requests_are_answered_or_end_their_connection(ottla_server: OttlaProcess, witness: Witness) -> None:
    chance = random.Random(31_337)
    frames = good_frames()
    for number in range(1500):
        with Wire(ottla_server.port) as wire:
            wire.send_frame(mutated(frames[number % len(frames)], chance))
            shut(wire)
            assert ends(wire), f"mutation {number}"


@pytest.mark.parametrize("size", [-1, -(1 << 31), (1 << 31) - 1, 200 * MIB])
def test_an_oversized_or_negative_length_ends_the_connection_before_memory_is_spent(
    ottla_server: OttlaProcess, witness: Witness, size: int
) -> None:
    for _ in range(20):
        with Wire(ottla_server.port) as wire:
            wire.socket.sendall(struct.pack(">i", size) + b"some of it")
            assert ends(wire, within_s=5)


def test_lengths_inside_a_request_that_claim_gigabytes_cost_nothing(
    ottla_server: OttlaProcess, witness: Witness
) -> None:
    huge = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80\0\0\0")
    for api, version in (
        ("metadata", 1),
        ("metadata", 12),
        ("produce", 3),
        ("produce", 9),
        ("fetch", 4),
        ("fetch", 12),
        ("create_topics", 7),
        ("join_group", 9),
        ("offset_fetch", 8),
    ):
        for length in huge:
            for leading in range(0, 24, 3):
                with Wire(ottla_server.port) as wire:
                    flexible = b"\0" if (api, version) not in {("metadata", 1), ("produce", 3), ("fetch", 4)} else b""
                    wire.send_frame(
                        struct.pack(">hhih", KEYS[api], version, 1, -1) + flexible + bytes(leading) + length + b"x" * 10
                    )
                    shut(wire)
                    assert ends(wire)


def test_an_unknown_api_ends_its_connection(ottla_server: OttlaProcess, witness: Witness) -> None:
    for key in (-1, 4, 7, 52, 999, 32767):
        with Wire(ottla_server.port) as wire:
            wire.send_frame(struct.pack(">hhihs", key, 0, 1, 1, b"t"))
            assert ends(wire, within_s=5)


def test_compressed_bombs_and_garbled_batches_are_refused(ottla_server: OttlaProcess, witness: Witness) -> None:
    chance = random.Random(7)
    right = batch(numbered(20))
    with Wire(ottla_server.port) as wire:
        for _ in range(300):
            wrong = bytearray(right)
            wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
            part = {"index": 0, "records": bytes(wrong)}
            said = wire.call(
                "produce", 9, acks=-1, timeout=5000, topic_data=[{"name": "witness", "partition_data": [part]}]
            )
            code = said["responses"][0]["partition_responses"][0]["error_code"]
            if bytes(wrong[16:]) == right[16:]:  # only the base offset, the length or the epoch, which have no checksum
                assert code in {0, 2, 87}, (code, bytes(wrong[:16]))
            else:
                assert code in {2, 10, 32, 35, 42, 43, 45, 47, 76, 87}, (code, bytes(wrong[:61]))


def test_silent_and_half_open_connections_cost_the_others_nothing(ottla_server: OttlaProcess, witness: Witness) -> None:
    idle = [socket.create_connection(("127.0.0.1", ottla_server.port)) for _ in range(300)]
    for each in idle[::3]:
        each.sendall(b"\0\0")  # half a length
    for each in idle[1::3]:
        each.sendall(struct.pack(">i", 5000) + b"\0\3")  # half a frame
    served = witness.served
    until(lambda: witness.served > served + 50, what="service beside silent connections")
    for each in idle[::2]:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends with a reset
    for each in idle:
        each.close()
    until(lambda: usage(ottla_server.pid).descriptors < 100, what="the broker letting go of the connections")


def test_a_request_sent_a_byte_at_a_time_is_answered_while_others_are_served(
    ottla_server: OttlaProcess, witness: Witness
) -> None:
    frame = encode("metadata", 12, 5, {"topics": None})
    slow = [Wire(ottla_server.port) for _ in range(50)]
    for byte in struct.pack(">i", len(frame)) + frame:
        for wire in slow:
            wire.socket.sendall(bytes([byte]))
    for wire in slow:
        assert wire.receive("metadata", 12, 5)["topics"]
        wire.close()


def test_a_client_that_never_reads_is_not_buffered_without_end(ottla_server: OttlaProcess, witness: Witness) -> None:
    with Wire(ottla_server.port) as wire:
        for _ in range(20):
            part = {"index": 0, "records": batch(numbered(8, size=100_000))}
            wire.call("produce", 9, acks=-1, timeout=5000, topic_data=[{"name": "witness", "partition_data": [part]}])
    before = usage(ottla_server.pid).rss_bytes
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10 * MIB, "current_leader_epoch": -1}
    fetch = {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 10 * MIB,
        "replica_id": -1,
        "session_epoch": -1,
        "topics": [{"topic": "witness", "partitions": [part]}],
    }
    frame = encode("fetch", 12, 1, fetch)
    deaf = []
    for _ in range(5):
        wire = Wire(ottla_server.port)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.socket.setblocking(False)
        for _ in range(200):  # 200 answers of 10 MB each are asked for and not read
            try:
                wire.socket.send(struct.pack(">i", len(frame)) + frame)
            except BlockingIOError:
                break
        deaf.append(wire)
    served = witness.served
    until(lambda: witness.served > served + 100, what="service beside deaf clients")
    grown = usage(ottla_server.pid).rss_bytes - before
    for wire in deaf:
        wire.close()
    assert grown < MAY_GROW_BYTES, f"{grown / MIB:.0f} MiB for clients that do not read"


def test_answers_come_in_the_order_of_their_requests(ottla_server: OttlaProcess, witness: Witness) -> None:
    part = {"partition": 0, "fetch_offset": 1 << 40, "partition_max_bytes": MIB, "current_leader_epoch": -1}
    waits = {"max_wait": 700, "min_bytes": MIB, "max_bytes": MIB, "replica_id": -1, "session_epoch": -1}
    with Wire(ottla_server.port) as wire:
        wire.call(
            "create_topics", 5, topics=[{"name": "quiet", "num_partitions": 1, "replication_factor": 1}], timeout=5000
        )
        part["fetch_offset"] = 0
        ids = [
            wire.send("fetch", 12, **waits, topics=[{"topic": "quiet", "partitions": [part]}]),
            wire.send("metadata", 12, topics=None),
            wire.send(
                "produce",
                9,
                acks=-1,
                timeout=1000,
                topic_data=[{"name": "quiet", "partition_data": [{"index": 0, "records": batch()}]}],
            ),
            wire.send("api_versions", 0),
        ]
        for api, version, number in zip(
            ("fetch", "metadata", "produce", "api_versions"), (12, 12, 9, 0), ids, strict=True
        ):
            wire.receive(api, version, number)
