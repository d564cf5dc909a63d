"""Declares the settings of the connection to ZooKeeper."""

from __future__ import annotations

from ottla.core.settings import INT_MAX, SECOND_MS, Section, Type, setting


class ZooKeeperConfig(Section):
    """Holds the addresses of ZooKeeper and the timeouts."""

    connect: str = setting(
        "zookeeper.connect", default="", kind=Type.STRING,
        doc="The ZooKeeper servers of the cluster, `host:port,host:port`, and optionally the path below which it keeps "
            "its metadata, such as `/ottla`. Empty means that this broker is the whole cluster, with a metadata store "
            "of its own.",
    )  # fmt: skip
    session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms", default=18 * SECOND_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        at_most=INT_MAX,
        doc="A broker of which ZooKeeper hears nothing for this time is considered dead, and others lead its "
            "partitions. ZooKeeper bounds it to 2 to 20 of its own ticks.",
    )  # fmt: skip
    connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms", default=18 * SECOND_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        at_most=INT_MAX,
        doc="The time in which a starting broker must have connected to ZooKeeper.",
    )  # fmt: skip
    set_acl: bool = setting(
        "zookeeper.set.acl", default=False, kind=Type.BOOLEAN,
        doc="Whether the nodes that this broker creates may be changed by clients of ZooKeeper with its identity only. "
            "Everybody may read them, except users, settings of brokers and delegation tokens.",
    )  # fmt: skip
    digest_user: str = setting(
        "ottla.zookeeper.digest.user", default="", kind=Type.STRING,
        doc="The name by which brokers authenticate with ZooKeeper (its scheme `digest`).",
    )  # fmt: skip
    digest_password: str = setting(
        "ottla.zookeeper.digest.password", default="", kind=Type.PASSWORD, doc="The password of this name.",
    )  # fmt: skip
    tls_enable: bool = setting(
        "zookeeper.ssl.client.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether brokers connect to ZooKeeper with TLS.",
    )  # fmt: skip
    connection_socket: str = setting(
        "zookeeper.clientCnxnSocket", default="", kind=Type.STRING, doc="The class of Java's connections to ZooKeeper.",
        no_effect="Ottla's client is not Java's",
    )  # fmt: skip
    keystore_location: str = setting(
        "zookeeper.ssl.keystore.location", default="", kind=Type.STRING,
        doc="The file with the certificate for ZooKeeper and its key: PEM or PKCS#12.",
    )  # fmt: skip
    keystore_password: str = setting(
        "zookeeper.ssl.keystore.password", default="", kind=Type.PASSWORD,
        doc="The password of this key store, or of an encrypted key.",
    )  # fmt: skip
    keystore_type: str = setting(
        "zookeeper.ssl.keystore.type", default="", kind=Type.STRING, choices=("", "JKS", "PKCS12", "PEM"),
        doc="The format of this key store.", no_effect="it is recognized by its content",
    )  # fmt: skip
    truststore_location: str = setting(
        "zookeeper.ssl.truststore.location", default="", kind=Type.STRING,
        doc="The file with the certificates that ZooKeeper's certificate must be issued by: PEM or PKCS#12. Empty "
            "means those that this machine trusts.",
    )  # fmt: skip
    truststore_password: str = setting(
        "zookeeper.ssl.truststore.password", default="", kind=Type.PASSWORD, doc="The password of this trust store.",
    )  # fmt: skip
    truststore_type: str = setting(
        "zookeeper.ssl.truststore.type", default="", kind=Type.STRING, choices=("", "JKS", "PKCS12", "PEM"),
        doc="The format of this trust store.", no_effect="it is recognized by its content",
    )  # fmt: skip
    enabled_protocols: tuple[str, ...] = setting(
        "zookeeper.ssl.enabled.protocols", default=(), kind=Type.LIST, choices=("TLSv1.2", "TLSv1.3"),
        doc="The versions of TLS to ZooKeeper; empty means both.",
    )  # fmt: skip
    cipher_suites: tuple[str, ...] = setting(
        "zookeeper.ssl.cipher.suites", default=(), kind=Type.LIST,
        doc="The cipher suites to ZooKeeper, by their IANA names or OpenSSL's; empty means OpenSSL's choice.",
    )  # fmt: skip
    endpoint_identification: str = setting(
        "zookeeper.ssl.endpoint.identification.algorithm", default="HTTPS", kind=Type.STRING,
        choices=("HTTPS", "https", ""),
        doc="Whether the host name in ZooKeeper's certificate is checked: `HTTPS`, or empty for no.",
    )  # fmt: skip
