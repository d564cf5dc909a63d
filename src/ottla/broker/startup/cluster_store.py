"""Decides whether a broker belongs to a cluster, with ZooKeeper or of workers on one machine, and opens its store then.

kazoo is imported only for ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.config import BrokerConfig
from ottla.broker.startup.open_storage import NoUsableDirectory, OpenStore, metadata_directory
from ottla.core.errors import StorageError
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.metadata_store.config import ZooKeeperConfig
from ottla.metadata_store.logged_wait import LoggedWait
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.metadata_store.store import MetadataStore, SessionLost
from ottla.metadata_store.zookeeper_connect import ZooKeeperConnect, parse_connect

if TYPE_CHECKING:  # with ZooKeeper only
    import ssl

    from ottla.metadata_store.zookeeper_connection import ZooKeeperSecurity

_EXPIRY_DELAY_S = 5.0
"""ZooKeeper ends sessions by its ticks, and starts to count again when it elects a leader."""


def zookeeper_of(config: BrokerConfig) -> ZooKeeperConnect | None:
    """Return where the cluster's ZooKeeper is; None if the broker has a store of its own. Raises InvalidSettings."""
    text = config.zookeeper.connect
    if not text:
        return None
    try:
        return parse_connect(text)
    except ValueError as error:
        problem = SettingProblem("zookeeper.connect", text, f"{error}. Write host:port,host:port/path")
        raise InvalidSettings([problem]) from error


def expiry_wait_s(config: BrokerConfig) -> float:
    """Return how long the registration of an earlier, killed run of this broker may still exist."""
    return config.zookeeper.session_timeout_ms / 1000 + _EXPIRY_DELAY_S if config.zookeeper.connect else 0.0


def worker_store_opener(socket: Path, node_id: int) -> OpenStore:
    """Return what opens the store that the owner of the workers serves (`ottla server --workers`)."""

    async def open_store() -> MetadataStore:
        from ottla.metadata_store.socket_store import SocketStore

        try:
            return await SocketStore.open(socket, node_id)
        except SessionLost as error:
            raise StorageError(f"no process serves the metadata store at {socket}. Start the owner first") from error

    return open_store


def _check_zookeeper(config: ZooKeeperConfig) -> None:
    """Refuse settings of ZooKeeper that contradict each other. Raises InvalidSettings."""
    if bool(config.digest_user) != bool(config.digest_password):
        problem = "ottla.zookeeper.digest.user and ottla.zookeeper.digest.password need each other"
        raise InvalidSettings([SettingProblem("ottla.zookeeper.digest.user", config.digest_user, problem)])
    if config.set_acl and not (config.digest_user or (config.tls_enable and config.keystore_location)):
        problem = (
            "needs an identity in ZooKeeper: ottla.zookeeper.digest.user and its password, or TLS with "
            "zookeeper.ssl.keystore.location"
        )
        raise InvalidSettings([SettingProblem("zookeeper.set.acl", "true", problem)])
    if config.tls_enable:
        try:
            _tls_context(config)
        except ValueError as error:
            raise InvalidSettings(
                [SettingProblem("zookeeper.ssl.keystore.location", config.keystore_location, str(error))]
            ) from None


def _security_of(config: ZooKeeperConfig) -> ZooKeeperSecurity:
    from ottla.metadata_store.zookeeper_connection import ZooKeeperSecurity

    return ZooKeeperSecurity(
        digest=f"{config.digest_user}:{config.digest_password}" if config.digest_user else "",
        sets_acl=config.set_acl,
        context=_tls_context(config) if config.tls_enable else None,
    )


def _tls_context(config: ZooKeeperConfig) -> ssl.SSLContext:
    """Return the context of connections to ZooKeeper. Raises InvalidKeyStore."""
    from ottla.client.tls import Tls
    from ottla.security.key_stores import KeyStore

    def store(location: str, password: str) -> KeyStore | None:
        return KeyStore(location, password=password or None) if location else None

    return Tls(
        trust=store(config.truststore_location, config.truststore_password),
        chain=store(config.keystore_location, config.keystore_password),
        check_hostname=bool(config.endpoint_identification),
        protocols=config.enabled_protocols,
        ciphers=config.cipher_suites,
    ).context()


def store_opener(config: BrokerConfig, paths: Sequence[Path]) -> OpenStore | None:
    """Return what opens the cluster's store; None if the broker has a store of its own.

    Raises InvalidSettings, and NoUsableDirectory if the directories belong to a broker with a store of its own.
    """
    connect = zookeeper_of(config)
    if connect is None:
        return None
    own = metadata_directory(config, paths) / METADATA_FILE
    if own.exists():
        raise NoUsableDirectory(
            f"{own} is the metadata store of a broker without ZooKeeper. Its topics would be unknown in the cluster: "
            f"give --data another directory, and copy the topics with `ottla mirror`"
        )
    timeouts = config.zookeeper
    _check_zookeeper(config.zookeeper)

    async def open_store() -> MetadataStore:
        from ottla.metadata_store.zookeeper import ZooKeeperStore

        store = ZooKeeperStore(
            connect,
            session_timeout_s=timeouts.session_timeout_ms / 1000,
            connection_timeout_s=timeouts.connection_timeout_ms / 1000,
            security=_security_of(config.zookeeper),
        )
        with LoggedWait(f"ZooKeeper at {connect}"):
            await store.renew()
        return store

    return open_store
