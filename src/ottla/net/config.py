"""What may be set of sockets and connections."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, Type, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """The `socket.*`, `connections.*` and `listeners` of Kafka's server.properties."""

    listeners: tuple[str, ...] = setting(
        "listeners", default=("PLAINTEXT://127.0.0.1:9092",), kind=Type.LIST,
        doc="Where to listen, as NAME://host:port. Port 0 picks a free one; an empty host means all addresses.",
    )  # fmt: skip
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners", default=(), kind=Type.LIST,
        doc="What clients are told to connect to, where that is not `listeners`: behind NAT, in a container.",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = setting(
        "listener.security.protocol.map", default=("PLAINTEXT:PLAINTEXT",), kind=Type.LIST,
        doc="Which security protocol each listener's name stands for. Only PLAINTEXT is served so far.",
    )  # fmt: skip
    controller_listener_names: tuple[str, ...] = setting(
        "controller.listener.names", default=(), kind=Type.LIST,
        doc="Listeners of a KRaft quorum: Ottla has none, so those named here are not opened.",
    )  # fmt: skip
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", default="", kind=Type.STRING,
        doc="The listener brokers use among themselves; empty means the first one.",
    )  # fmt: skip
    request_bytes_max: int = setting(
        "socket.request.max.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1 * KIB, at_most=INT_MAX,
        doc="A larger request is refused from its first four bytes, before memory is spent on it.",
    )  # fmt: skip
    queued_request_bytes_max: int = setting(
        "queued.max.request.bytes", default=256 * MIB, kind=Type.LONG, unit="bytes", at_least=1 * MIB,
        doc="All large requests together may hold so much memory; beyond it sockets are not read.",
    )  # fmt: skip
    send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="The kernel's send buffer per connection; -1 leaves it to the kernel.",
    )  # fmt: skip
    receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="The kernel's receive buffer per connection; -1 leaves it to the kernel.",
    )  # fmt: skip
    backlog: int = setting(
        "socket.listen.backlog.size", default=511, kind=Type.INT, at_least=1,
        doc="Connections the kernel holds before they are accepted.",
    )  # fmt: skip
    connections_max: int = setting(
        "max.connections", default=10_000, kind=Type.INT, at_least=1, live=True,
        doc="Connections served at once; further ones are closed as they arrive.",
    )  # fmt: skip
    connections_per_ip_max: int = setting(
        "max.connections.per.ip", default=INT_MAX, kind=Type.INT, at_least=1, live=True,
        doc="Connections served at once from one address.",
    )  # fmt: skip
    idle_ms: int = setting(
        "connections.max.idle.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="A connection that asks nothing for so long is closed; -1 never.",
    )  # fmt: skip
    busy_poll_us: int = setting(
        "ottla.busy.poll.us", default=60, kind=Type.INT, unit="microseconds", at_least=0, at_most=10_000,
        doc="After an answer the broker looks for the next request so long before it sleeps; waking a sleeping core "
            "costs more. 0 switches it off.",
    )  # fmt: skip
    request_receive_ms: int = setting(
        "ottla.request.receive.max.ms", default=30 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=100,
        doc="From its first byte to its last a request may take so long; slower senders are closed.",
    )  # fmt: skip
