"""Declares the settings of sockets and connections."""

from __future__ import annotations

from ottla.core.security_protocols import PROTOCOL_NAMES
from ottla.core.settings import INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, Content, Section, Type, setting


class NetConfig(Section):
    """Holds the settings `socket.*`, `connections.*` and `listeners` of Kafka's server.properties."""

    listeners: tuple[str, ...] = setting(
        "listeners", default=("PLAINTEXT://127.0.0.1:9092",), kind=Type.LIST,
        doc="Listeners as NAME://host:port. Port 0 selects a free one; an empty host and `[::]` mean all "
        "addresses, of IPv4 and IPv6, and `0.0.0.0` all of IPv4.",
    )  # fmt: skip
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners", default=(), kind=Type.LIST,
        doc="The addresses that clients connect to if they differ from `listeners`, as with NAT or in "
        "a container. Port 0 stands for the listener's port, as in Kafka.",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = setting(
        "listener.security.protocol.map", kind=Type.LIST,
        default=("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        doc="The security protocol of each listener's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    )  # fmt: skip
    controller_listener_names: tuple[str, ...] = setting(
        "controller.listener.names", default=(), kind=Type.LIST,
        doc="Listeners of a KRaft quorum. Ottla has no quorum and does not open these listeners.",
    )  # fmt: skip
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", default="", kind=Type.STRING,
        doc="The listener for connections between brokers. Empty means that of `security.inter.broker.protocol`, or "
        "else the one named PLAINTEXT, or else the first one.",
    )  # fmt: skip
    inter_broker_protocol: str = setting(
        "security.inter.broker.protocol", default="", kind=Type.STRING, choices=("", *PROTOCOL_NAMES),
        doc="The security protocol between brokers, by the listener of this name. Set either this or "
        "`inter.broker.listener.name`.",
    )  # fmt: skip
    allow_insecure_listeners: bool = setting(
        "ottla.allow.insecure.listeners", default=False, kind=Type.BOOLEAN,
        doc="Whether a listener without TLS and SASL may have another address than a loopback one: every client that "
        "reaches it may read and write everything. `--insecure-listeners` sets it.",
    )  # fmt: skip
    handshake_ms: int = setting(
        "ottla.tls.handshake.max.ms", default=10 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=100,
        doc="Maximum time of a TLS handshake, from the connection on; the connection of a slower client is closed.",
    )  # fmt: skip
    sign_in_request_bytes_max: int = setting(
        "sasl.server.max.receive.size", default=512 * KIB, kind=Type.INT, unit="bytes", at_least=1 * KIB,
        at_most=INT_MAX,
        doc="Maximum size of a request before the client has signed in with SASL.",
    )  # fmt: skip
    request_bytes_max: int = setting(
        "socket.request.max.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1 * KIB, at_most=INT_MAX,
        doc="Maximum size of a request. A larger one is rejected by its length, before memory is "
        "allocated for it.",
    )  # fmt: skip
    queued_request_bytes_max: int = setting(
        "queued.max.request.bytes", default=256 * MIB, kind=Type.LONG, unit="bytes", at_least=1 * MIB,
        doc="Maximum memory of all large requests together; at this limit sockets are not read.",
    )  # fmt: skip
    send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="Size of the kernel's send buffer per connection.", no_effect="the kernel's default is used",
    )  # fmt: skip
    receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes", default=-1, kind=Type.INT, unit="bytes", at_least=-1,
        doc="Size of the kernel's receive buffer per connection.", no_effect="the kernel's default is used",
    )  # fmt: skip
    backlog: int = setting(
        "socket.listen.backlog.size", default=511, kind=Type.INT, at_least=1,
        doc="Maximum number of connections that the kernel queues before they are accepted.",
    )  # fmt: skip
    connections_max: int = setting(
        "max.connections", default=10_000, kind=Type.INT, at_least=1, live=True, per_listener=True,
        doc="Maximum number of connections; further ones are closed when they arrive. For one of the listener between "
        "brokers, where clients have another one, the client's that was not used for longest is closed.",
    )  # fmt: skip
    connections_per_ip_max: int = setting(
        "max.connections.per.ip", default=INT_MAX, kind=Type.INT, at_least=1, live=True,
        doc="Maximum number of connections from one address. The default stands for half of `max.connections`, and for "
        "all of them from a loopback address.",
    )  # fmt: skip
    connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides", default="", kind=Type.STRING, live=True, content=Content.NAME,
        doc="Maximum number of connections from single addresses, as `10.0.0.1:100,[fd00::1]:200`.",
    )  # fmt: skip
    connection_rate_max: int = setting(
        "max.connection.creation.rate", default=INT_MAX, kind=Type.INT, unit="connections/second", at_least=1,
        live=True, per_listener=True,
        doc="Maximum rate of new connections. Those that come faster wait before their first request is read, and are "
        "closed if they would have to wait for longer than all `quota.window.num`.",
    )  # fmt: skip
    idle_ms: int = setting(
        "connections.max.idle.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="A connection without requests for this long is closed; -1 means never.",
    )  # fmt: skip
    busy_poll_us: int = setting(
        "ottla.busy.poll.us", default=60, kind=Type.INT, unit="microseconds", at_least=0, at_most=10_000,
        doc="After a response the broker polls for the next request for this long before it sleeps, "
        "because waking up an idle core costs more. 0 disables it.",
    )  # fmt: skip
    request_receive_ms: int = setting(
        "ottla.request.receive.max.ms", default=30 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=100,
        doc="Maximum time from the first to the last byte of a request; the connection of a slower "
        "sender is closed.",
    )  # fmt: skip
