"""Runs brokers with the methods of testcontainers' module for Kafka: a project changes one import.

    from ottla.testing.containers import KafkaContainer    # was: from testcontainers.community.kafka import ...

    with KafkaContainer().with_env("KAFKA_LOG_RETENTION_MS", "60000") as container:
        producer = Producer({"bootstrap.servers": container.get_bootstrap_server()})

Variables that begin with KAFKA_ are settings of the broker, as in the images of Apache Kafka and Confluent. What needs
a container, such as a network of containers or a command in one, raises `NotInAProcess`. `container.kafka` is the
object of `ottla.testing.kafka`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from ottla.broker.config import declared
from ottla.broker.kafka_config import NOT_HERE, is_of_kraft, missing_security
from ottla.core.settings import SettingText
from ottla.testing.kit.kafka import Kafka, kafka

__all__ = ["KafkaContainer", "NotInAProcess", "RedpandaContainer", "kafka_config"]

_HOST = "127.0.0.1"
_PREFIX = "KAFKA_"
_OF_THE_KIT = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
    }
)
"""Settings that are decided here: an image needs them in order to be reached from the test."""
_OF_THE_IMAGE = frozenset(
    {
        "KAFKA_DEBUG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
"""Variables of the JVM and the image, which are no settings there either."""


class NotInAProcess(NotImplementedError):
    """Names what needs a container, and what to do instead."""


@dataclass
class _KafkaConfig:
    """Settings of testcontainers' module; the brokers here have one listener, so that none has an effect."""

    limit_broker_to_first_host: bool = False


kafka_config = _KafkaConfig()


class _BrokerContainer:
    """One broker in this process, with the methods of testcontainers' `DockerContainer`."""

    def __init__(self, image: str, port: int, env: Mapping[str, str] | None, name: str | None) -> None:
        self.image, self.port = image, port
        self.env: dict[str, str] = dict(env or {})
        self.ports: dict[str, int | None] = {str(port): None}
        self._name, self._host_port = name, 0
        self._kafka: Kafka | None = None
        self._was_started = False

    # ---- Lifetime

    def start(self, timeout: int = 30) -> Self:
        """Start the broker; returns when it serves. Raises ValueError for variables that it cannot follow."""
        del timeout
        if self._kafka is None:
            options = options_of(self.env)
            self._kafka = kafka(options=options, port=self._host_port).start()
            self._was_started = True
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the broker; its records are gone."""
        del force, delete_volume
        if self._kafka is not None:
            self._kafka.stop()
            self._kafka = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- Access

    @property
    def kafka(self) -> Kafka:
        """Return the broker that runs, with all that `ottla.testing.kafka` can do."""
        if self._kafka is None:
            raise RuntimeError("the broker does not run: use `with KafkaContainer() as container:`, or start()")
        return self._kafka

    def get_bootstrap_server(self) -> str:
        """Return `bootstrap.servers` for clients."""
        return self.kafka.bootstrap

    def get_container_host_ip(self) -> str:
        """Return the address of the broker."""
        return _HOST

    def get_exposed_port(self, port: int) -> int:
        """Return the port of the broker, for the one that a container would have inside."""
        if int(port) != self.port:
            raise NotInAProcess(
                f"the broker has no port {port}: it has one listener, which stands for port {self.port}"
            )
        return int(self.kafka.bootstrap.rpartition(":")[2])

    def get_logs(self) -> tuple[bytes, bytes]:
        """Return what the broker has logged, and nothing for stderr."""
        return self.kafka.log.encode(), b""

    @property
    def status(self) -> str:
        """Return `not_started`, `running` or `exited`."""
        if self._kafka is not None:
            return "running"
        return "exited" if self._was_started else "not_started"

    def reload(self) -> None:
        """Do nothing: `status` is always that of now."""

    # ---- Settings

    def with_env(self, key: str, value: str) -> Self:
        """Set a variable: with KAFKA_ a setting of the broker."""
        self.env[key] = str(value)
        return self

    def with_envs(self, **variables: str) -> Self:
        """Set variables."""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_env_file(self, env_file: str | Path) -> Self:
        """Set the variables of a file with lines `NAME=value`."""
        for line in Path(env_file).read_text(encoding="utf-8").splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and not name.startswith("#"):
                self.with_env(name.strip(), value.strip().strip("\"'"))
        return self

    def with_exposed_ports(self, *ports: str | int) -> Self:
        """Accept ports of a container: its broker has one, and `get_exposed_port` returns it."""
        self.ports.update({str(port): None for port in ports})
        return self

    def with_bind_ports(self, container: str | int, host: str | int | None = None) -> Self:
        """Choose the port of the broker, or leave it to the system."""
        if host is not None and str(container).partition("/")[0] == str(self.port):
            self._host_port = int(host)
        return self.with_exposed_ports(container)

    def with_name(self, name: str) -> Self:
        """Accept a name."""
        self._name = name
        return self

    def with_kwargs(self, **arguments: Any) -> Self:
        """Accept arguments for Docker, which have no effect."""
        del arguments
        return self

    def maybe_emulate_amd64(self) -> Self:
        """Do nothing: the broker runs on this processor."""
        return self

    def waiting_for(self, strategy: object) -> Self:
        """Accept what to wait for: `start` returns when the broker serves."""
        del strategy
        return self

    # ---- What needs a container

    def with_network(self, network: object) -> NoReturn:
        """Refuse a network of containers."""
        raise NotInAProcess(f"{network}: a broker in this process cannot be reached from a network of containers")

    def with_network_aliases(self, *aliases: str) -> NoReturn:
        """Refuse a name in a network of containers."""
        raise NotInAProcess(f"{', '.join(aliases)}: a broker in this process has no name in a network of containers")

    def __getattr__(self, name: str) -> NoReturn:
        if name in _NEED_A_CONTAINER:
            raise NotInAProcess(f"{type(self).__name__}.{name}: {_NEED_A_CONTAINER[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_NO_FILES = "the broker has its files in this process's memory; its settings are variables: with_env"
_NO_COMMAND = "the broker is no process of its own, in which a command could run; use a client of Kafka"
_NEED_A_CONTAINER = {
    "copy_from_container": _NO_FILES,
    "copy_into_container": _NO_FILES,
    "create_file": _NO_FILES,
    "exec": _NO_COMMAND,
    "get_container_id": "there is no container",
    "get_container_info": "there is no container",
    "get_docker_client": "there is no Docker",
    "get_wrapped_container": "there is no container; `kafka` has methods to stop the broker and to let it fail",
    "wait": "there is no container",
    "with_command": _NO_COMMAND,
    "with_copy_into_container": _NO_FILES,
    "with_tmpfs_mount": _NO_FILES,
    "with_volume_mapping": _NO_FILES,
}


class KafkaContainer(_BrokerContainer):
    """One broker in this process, for testcontainers' class of this name. The image is not looked at."""

    def __init__(
        self,
        image: str = "confluentinc/cp-kafka:7.6.0",
        port: int = 9093,
        wait_strategy_check_string: str = "",
        listener_name: str = "PLAINTEXT",
        security_protocol: str = "PLAINTEXT",
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        del wait_strategy_check_string
        if security_protocol != "PLAINTEXT":
            raise NotInAProcess(f"security_protocol={security_protocol!r}: a broker in a test has PLAINTEXT alone")
        _refuse(kwargs)
        super().__init__(image, port, env, name)
        self.listener_name, self.security_protocol = listener_name, security_protocol
        self.kraft_enabled = False

    def with_kraft(self) -> Self:
        """Accept that metadata is stored without ZooKeeper, as it is."""
        self.kraft_enabled = True
        return self

    def with_cluster_id(self, cluster_id: str) -> NoReturn:
        """Refuse an id of the cluster."""
        raise NotInAProcess(f"{cluster_id}: each cluster chooses its own id; a client reads it (describe_cluster)")


class RedpandaContainer(_BrokerContainer):
    """One broker in this process, for testcontainers' class of this name. The image is not looked at."""

    def __init__(
        self,
        image: str = "docker.redpanda.com/redpandadata/redpanda:v23.1.13",
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse(kwargs)
        super().__init__(image, 9092, env, name)
        self.redpanda_port = self.port

    def get_schema_registry_address(self) -> NoReturn:
        """Refuse to name a schema registry."""
        raise NotInAProcess("Ottla has no schema registry")


def _refuse(arguments: Mapping[str, object]) -> None:
    for name in ("network", "network_aliases", "volumes", "command", "transferables"):
        if arguments.get(name) is not None:
            raise NotInAProcess(f"{name}={arguments[name]!r}: the broker runs in this process, not in a container")


def options_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return settings of a broker from variables of an image. Raises ValueError with all that it cannot follow.

    In names `_` is a dot, `__` an underscore and `___` a dash. Those of a quorum, of the JVM and of parts of Kafka that
    Ottla does not have are passed over, as in a `server.properties`.
    """
    known = declared()
    options: dict[str, str] = {}
    problems = []
    for variable, value in variables.items():
        if not variable.startswith(_PREFIX) or variable in _OF_THE_IMAGE:
            continue
        key = variable.removeprefix(_PREFIX).lower().replace("___", "-").replace("__", "\0").replace("_", ".")
        key = key.replace("\0", "_")
        if problem := _problem(key, value, known):
            problems.append(f"{variable}: {problem}")
        elif key in known and key not in _OF_THE_KIT:
            options[key] = value
    if problems:
        raise ValueError("\n".join(problems))
    return options


def _problem(key: str, value: str, known: Mapping[str, object]) -> str:
    if key == "listener.security.protocol.map":
        others = {pair.partition(":")[2].strip() for pair in value.split(",")} - {"PLAINTEXT"}
        return f"a broker in a test has PLAINTEXT alone, not {', '.join(sorted(others))}" if others else ""
    if key in known or key in _OF_THE_KIT or is_of_kraft(key) or key.startswith("confluent."):
        return ""
    for problem in missing_security({key: SettingText(value, "environment")}):
        return problem.reason
    if key in NOT_HERE:
        return ""
    near = difflib.get_close_matches(key, [*known, *NOT_HERE], n=1)
    return "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")
