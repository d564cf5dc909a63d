"""Keeps the client instances that push metrics: what each was asked for, when it pushed, and the last values.

Both are bounded: the least recently used instance makes room for a new one, and above `ottla.client.metrics.series.max`
values of new metrics are left out. An instance goes when its connection closes, or after three intervals of silence.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator, Mapping
from typing import Final

from ottla.broker.client_metrics.otlp import LeftOut, MalformedMetrics, Point, points
from ottla.broker.client_metrics.subscriptions import Subscribed, read_subscriptions, subscribed
from ottla.broker.http_config import MetricsConfig
from ottla.core.clock import Clock
from ottla.core.errors import CorruptMessage, ErrorCode
from ottla.core.ids import id_text
from ottla.core.runtime import new_uuid
from ottla.core.slices import WorkSlice
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import EntityConfig
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.records.codecs import Codec, TooMuch, decompress_within

INSTANCES_MAX = 16_384
"""Client instances of a broker, as in Kafka."""
SERIES_OF_INSTANCE_MAX = 1_000
ACCEPTED_COMPRESSION: Final = (Codec.ZSTD.value, Codec.LZ4.value, Codec.GZIP.value, Codec.SNAPPY.value)
"""In the order of preference; a push without compression is taken, too."""
_CODECS: Final = frozenset(codec.value for codec in Codec)
RESERVED_IDS: Final = frozenset({uuid.UUID(int=0), uuid.UUID(int=1)})
_EXPIRY_S, _EXPIRY_INTERVALS = 60.0, 3
_NONE: Mapping[str, EntityConfig] = {}


class Series:
    """The last value of one metric with its attributes, or the sum of what a counter has sent."""

    __slots__ = ("is_counter", "value")

    def __init__(self, *, is_counter: bool) -> None:
        self.value: float = 0
        self.is_counter = is_counter


class ClientInstance:
    """One client, as it was when it first asked."""

    __slots__ = (
        "client",
        "connection_id",
        "expires",
        "got",
        "instance_id",
        "is_terminating",
        "may_ask_again",
        "may_push_at_once",
        "pushed",
        "series",
        "subscribed",
        "version",
    )

    def __init__(
        self,
        instance_id: uuid.UUID,
        client: Mapping[str, str],
        subscribed_to: Subscribed,
        version: int,
        connection_id: int,
    ) -> None:
        self.instance_id, self.client, self.connection_id = instance_id, client, connection_id
        self.subscribed, self.version = subscribed_to, version
        self.got = self.pushed = -math.inf  # when it last asked, and last pushed
        self.expires = 0.0
        self.is_terminating = False
        self.may_push_at_once = True  # it has asked since its last push
        self.may_ask_again = False  # its last push was refused, and the subscriptions say why
        self.series: dict[tuple[str, str], Series] = {}

    @property
    def _interval_s(self) -> float:
        return self.subscribed.interval_ms / 1000

    def may_get(self, now: float) -> bool:
        """Note a request for the subscriptions; return False within the interval, if the last push was for them.

        As in Kafka, one within the interval does not make an early push possible.
        """
        is_early = now - max(self.got, self.pushed) < self._interval_s
        if is_early and not self.may_ask_again:
            return False
        self.may_ask_again = False
        if not is_early:
            self.got, self.may_push_at_once = now, True
        return True

    def may_push(self, now: float) -> bool:
        """Note a push; return False within the interval, but for the first one after a request for subscriptions."""
        if not self.may_push_at_once and now - self.pushed < self._interval_s:
            return False
        self.pushed, self.may_push_at_once = now, False
        return True

    def use(self, now: float) -> None:
        """Note that it sent a request."""
        self.expires = now + max(_EXPIRY_S, _EXPIRY_INTERVALS * self._interval_s)


class ClientMetrics:
    """The client instances of this broker."""

    def __init__(self, config: MetricsConfig, cluster: MetadataCache, clock: Clock) -> None:
        self._config, self._cluster, self._clock = config, cluster, clock
        self._instances: OrderedDict[uuid.UUID, ClientInstance] = OrderedDict()  # the least recently used one first
        self._of_connection: dict[int, uuid.UUID] = {}
        self._stored: Mapping[str, EntityConfig] = _NONE
        self._subscriptions = read_subscriptions(_NONE)
        self._version = 0  # of the subscriptions
        self._series = 0
        self.left_out = 0
        self.answers: Counter[ErrorCode] = Counter()  # to pushes

    def __len__(self) -> int:
        return len(self._instances)

    def get(
        self, instance_id: uuid.UUID, client: Mapping[str, str], connection_id: int
    ) -> tuple[ErrorCode, ClientInstance]:
        """Return what a client is asked to push; a new client gets an id."""
        if instance_id.int == 0:
            instance_id = new_uuid()
        now = self._clock.monotonic()
        instance = self._instance(instance_id, client, connection_id, now)
        return ErrorCode.NONE if instance.may_get(now) else ErrorCode.THROTTLING_QUOTA_EXCEEDED, instance

    def begin_push(
        self,
        instance_id: uuid.UUID,
        client: Mapping[str, str],
        connection_id: int,
        *,
        subscription_id: int,
        compression: int,
        size: int,
        is_terminating: bool,
    ) -> tuple[ErrorCode, ClientInstance | None]:
        """Check a push, in Kafka's order."""
        if instance_id in RESERVED_IDS:
            return ErrorCode.INVALID_REQUEST, None
        now = self._clock.monotonic()
        instance = self._instance(instance_id, client, connection_id, now)
        was_terminating, instance.is_terminating = instance.is_terminating, is_terminating
        if was_terminating:
            return ErrorCode.INVALID_REQUEST, instance
        if not instance.may_push(now) and not is_terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, instance
        instance.may_ask_again = True
        if subscription_id != instance.subscribed.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID, instance
        if compression not in _CODECS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, instance
        instance.may_ask_again = False
        if size > self._config.telemetry_bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE, instance
        return ErrorCode.NONE, instance

    def keep(
        self, instance: ClientInstance, compression: int, data: bytes, slices: WorkSlice
    ) -> Generator[None, None, ErrorCode]:
        """Keep the values of an accepted push; yields where the loop may turn. Without the setting they are dropped.

        The limit is that of the bytes after decompression too (CVE-2026-111073).
        """
        if not data:
            return ErrorCode.NONE
        try:
            decompressed = decompress_within(compression, data, self._config.telemetry_bytes_max)
            if not self._config.client_metrics:
                return ErrorCode.NONE
            for point in points(decompressed):
                if point is not None:
                    self._keep(instance, point)
                if slices.spend():
                    yield
        except TooMuch:
            return ErrorCode.TELEMETRY_TOO_LARGE
        except (CorruptMessage, MalformedMetrics):
            return ErrorCode.INVALID_RECORD
        return ErrorCode.NONE

    def _keep(self, instance: ClientInstance, point: Point | LeftOut) -> None:
        if isinstance(point, LeftOut) or self._instances.get(instance.instance_id) is not instance:
            self.left_out += 1
            return
        key = point.metric, point.attributes
        series = instance.series.get(key)
        if series is None:
            if len(instance.series) >= SERIES_OF_INSTANCE_MAX or self._series >= self._config.client_series_max:
                self.left_out += 1
                return
            series = instance.series[key] = Series(is_counter=point.is_counter)
            self._series += 1
        if not point.is_delta:
            series.value = point.value
        elif math.isfinite(point.value):
            series.value += point.value

    def shown(self) -> Iterator[ClientInstance]:
        """Yield the instances that have not expired."""
        self._drop_expired(self._clock.monotonic())
        yield from list(self._instances.values())

    def lost(self, connection_id: int) -> None:
        """Forget the instance of a connection that was closed."""
        instance_id = self._of_connection.get(connection_id)
        if instance_id is not None:
            self._remove(self._instances[instance_id])

    # ---- Instances

    def _instance(
        self, instance_id: uuid.UUID, client: Mapping[str, str], connection_id: int, now: float
    ) -> ClientInstance:
        self._read_subscriptions()
        instance = self._instances.get(instance_id)
        if instance is not None and instance.expires < now:
            self._remove(instance)
            instance = None
        if instance is None or instance.version < self._version:
            if instance is not None:
                client = instance.client
                self._remove(instance)
            instance = self._add(instance_id, client, connection_id)
        instance.use(now)
        self._instances.move_to_end(instance_id)
        return instance

    def _add(self, instance_id: uuid.UUID, client: Mapping[str, str], connection_id: int) -> ClientInstance:
        if len(self._instances) >= INSTANCES_MAX:
            self._remove(next(iter(self._instances.values())))
        client = {**client, "client_instance_id": id_text(instance_id)}
        asked = subscribed(self._subscriptions, client, instance_id.bytes)
        instance = ClientInstance(instance_id, client, asked, self._version, connection_id)
        self._instances[instance_id] = instance
        self._of_connection[connection_id] = instance_id
        return instance

    def _remove(self, instance: ClientInstance) -> None:
        del self._instances[instance.instance_id]
        self._series -= len(instance.series)
        if self._of_connection.get(instance.connection_id) == instance.instance_id:
            del self._of_connection[instance.connection_id]

    def _drop_expired(self, now: float) -> None:
        for instance in [instance for instance in self._instances.values() if instance.expires < now]:
            self._remove(instance)

    def _read_subscriptions(self) -> None:
        stored = self._cluster.current.configs.get(znodes.CLIENT_METRICS_KIND, _NONE)
        if stored is not self._stored:
            if stored != self._stored:
                self._subscriptions = read_subscriptions(stored)
                self._version += 1
            self._stored = stored
