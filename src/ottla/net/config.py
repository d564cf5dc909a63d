"""Declares the settings of sockets and connections."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, Type, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """Holds the settings `socket.*`, `connections.*` and `listeners` of Kafka's server.properties."""

    listeners: tuple[str, ...] = setting(
        "listeners", default=("PLAINTEXT://127.0.0.1:9092",), kind=Type.LIST,
        doc="Listeners as NAME://host:port. Port 0 picks a free port; an empty host means all addresses.",
    )  # fmt: skip
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners", default=(), kind=Type.LIST,
        doc="Addresses that clients connect to, if they differ from `listeners`: with NAT, in a container.",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = setting(
        "listener.security.protocol.map", default=("PLAINTEXT:PLAINTEXT",), kind=Type.LIST,
        doc="The security protocol of each listener name. Only PLAINTEXT is supported so far.",
    )  # fmt: skip
    controller_listener_names: tuple[str, ...] = setting(
        "controller.listener.names", default=(), kind=Type.LIST,
        doc="Listeners of a KRaft quorum. Ottla has none, so it does not open listeners with these names.",
    )  # fmt: skip
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", default="", kind=Type.STRING,
        doc="The listener for connections between brokers; empty means the first one.",
    )  # fmt: skip
    request_bytes_max: int = setting(
        "socket.request.max.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1 * KIB, at_most=INT_MAX,
        doc="Maximum size of a request. A larger one is rejected by its length, before memory is allocated.",
    )  # fmt: skip
    queued_request_bytes_max: int = setting(
        "queued.max.request.bytes", default=256 * MIB, kind=Type.LONG, unit="bytes", at_least=1 * MIB,
        doc="Memory for all large requests together; while it is used up, sockets are not read.",
    )  # fmt: skip
    send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="Size of the kernel's send buffer per connection; -1 means the kernel's default.",
    )  # fmt: skip
    receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="Size of the kernel's receive buffer per connection; -1 means the kernel's default.",
    )  # fmt: skip
    backlog: int = setting(
        "socket.listen.backlog.size", default=511, kind=Type.INT, at_least=1,
        doc="Maximum number of connections that wait in the kernel to be accepted.",
    )  # fmt: skip
    connections_max: int = setting(
        "max.connections", default=10_000, kind=Type.INT, at_least=1, live=True,
        doc="Maximum number of connections; further ones are closed when they arrive.",
    )  # fmt: skip
    connections_per_ip_max: int = setting(
        "max.connections.per.ip", default=INT_MAX, kind=Type.INT, at_least=1, live=True,
        doc="Maximum number of connections from one address.",
    )  # fmt: skip
    idle_ms: int = setting(
        "connections.max.idle.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="Connections without a request for so long are closed; -1 means never.",
    )  # fmt: skip
    busy_poll_us: int = setting(
        "ottla.busy.poll.us", default=60, kind=Type.INT, unit="microseconds", at_least=0, at_most=10_000,
        doc="How long the broker polls for the next request after a response before it sleeps; waking a sleeping core "
            "takes longer. 0 disables polling.",
    )  # fmt: skip
    request_receive_ms: int = setting(
        "ottla.request.receive.max.ms", default=30 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=100,
        doc="Maximum time from the first byte of a request to its last; slower connections are closed.",
    )  # fmt: skip
