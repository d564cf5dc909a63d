"""Fetches from the leaders what this broker's followers lack: one fetcher, connection and fetch session per leader.

A request names only the partitions whose position differs from what the session knows, so an idle partition costs
nothing. A partition is named again when everything that was fetched of it is flushed: a fetch offset counts only what
is durable. Requests are pipelined: while a flush takes long, a request that does not name its partitions waits at the
leader for records of the others; the next one names those that are flushed, and ends the wait of the one before.

A partition is fetched again after an error when its back-off is over, and at once when the snapshot has a newer state
of it. While it must not be fetched it is not in the session.

The requests of a connection are sent by callbacks: of the connection, of the group commit and of timers. A task opens
the connection and waits for its end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from typing import Final

from ottla.client.connection import Connection, ConnectTo
from ottla.client.errors import CannotConnect
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import CorruptMessage, KafkaError, RequestTimedOut, StorageError, UnsupportedVersion, error_for
from ottla.core.ids import TopicPartition
from ottla.core.settings import MIB
from ottla.replication.config import ReplicationConfig
from ottla.replication.fetch_channel import FetchChannel, FetchListener
from ottla.replication.fetch_session_handler import NO_SESSION, FetchSessionHandler, PartitionKey
from ottla.replication.follower_state import SYNCING, FetchPosition, SyncListener
from ottla.replication.leader_range import LeaderRange, fetch_leader_ranges
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.hot import replica_fetch
from ottla.wire.hot.replica_fetch import FetchAnswer, FetchedData, FetchRequestWriter, decode_fetch_answer

log = logging.getLogger(__name__)

CONNECT_BACKOFF_MIN_S: Final = 0.05
CONNECT_BACKOFF_MAX_S: Final = 1.0
PARTITION_BACKOFF_MIN_S: Final = 0.05
CATCH_UP_BYTES: Final = 8 * MIB
"""The limit for a partition whose last answer was full: it is far from the leader's end."""

REFUSAL_PATIENCE_S: Final = 1.0
"""A leader that learns of a new topic or term later than its followers does not serve it for a moment."""

FULL_DISK_BYTES: Final = 1
"""The limit while the log directory takes no records: the answers move the log start, so that retention frees space."""

THROTTLE_CHECK_S: Final = 1.0
"""A throttled partition is looked at this often: the rate or the list of throttled replicas may have changed."""

NAMES_MAX: Final = 250
"""Partitions that one request names, as many as its leader reads for one response; the next request names others."""

FLUSH_PATIENCE_S: Final = 0.002
"""A flush that takes longer does not hold up the other partitions; a request without news costs more than a shorter."""

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_NETWORK_ERRORS: Final = (CannotConnect, KafkaError, OSError, MalformedRequest, struct.error)

_NAMED_MAX: Final = 3
_NO_RECORDS: Final = memoryview(b"")

_UNEXPECTED: Final = "unexpected error while %s followed broker %d; it is not fetched until its state changes"


def _named(partitions: list[TopicPartition]) -> str:
    """Name some partitions, and count all."""
    named = ", ".join(map(str, partitions[:_NAMED_MAX])) + (", ..." if len(partitions) > _NAMED_MAX else "")
    return f"{len(partitions)} partitions ({named})"


def partition_key(partition: Partition) -> PartitionKey:
    """Return the key of a partition in a fetch session."""
    return partition.log.topic_id.bytes, partition.topic_partition.partition


class FetchedPartition(SyncListener):
    """One partition of a fetcher, and its back-off."""

    __slots__ = (
        "backoff",
        "backoff_s",
        "fetcher",
        "is_catching_up",
        "is_corrupt",
        "is_paused",
        "is_refusal_logged",
        "is_repeated",
        "is_stopped",
        "key",
        "partition",
        "refused_s",
    )

    def __init__(self, fetcher: ReplicaFetcher, partition: Partition) -> None:
        self.fetcher = fetcher
        self.partition = partition
        self.key = partition_key(partition)
        self.backoff: asyncio.TimerHandle | None = None  # not to be fetched until it is over
        self.backoff_s = 0.0
        self.is_catching_up = False
        self.is_corrupt = False  # as its leader sent it; this is logged once
        self.refused_s = -1.0  # since when its leader has not served it; -1: it does
        self.is_refusal_logged = False
        self.is_paused = False  # its leader is asked for its range, or it is to be truncated
        self.is_repeated = False  # it is named again: the leader sends what follows a position once
        self.is_stopped = False  # until the snapshot has a newer state

    @property
    def may_be_fetched(self) -> bool:
        """Return whether it is not in its back-off, waits for no truncation, and was not fenced."""
        return self.backoff is None and not self.is_paused and not self.is_stopped

    def end_backoff(self) -> None:
        """Mark the partition as due: its back-off has passed."""
        if self.backoff is not None:
            self.backoff.cancel()
            self.backoff = None

    def follower_synced(self) -> None:
        """Go on: everything in the log is durable."""
        self.fetcher.synced(self)

    def truncation_ended(self, error: Exception | None) -> None:
        """Go on at the new end, or later where the disk refused the truncation."""
        self.fetcher.truncated(self, error)


class ReplicaFetcher(FetchListener):
    """Fetches some partitions from one leader."""

    def __init__(
        self,
        leader: int,
        connect: ConnectTo,
        *,
        node_id: int,
        config: ReplicationConfig,
        context: ReplicationContext,
        jitter: Callable[[], float],
    ) -> None:
        self.leader = leader
        self._connect, self._node_id, self._jitter = connect, node_id, jitter
        self._config, self._context = config, context
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionKey, FetchedPartition] = {}
        self._dirty: dict[FetchedPartition, None] = {}  # whose position may differ from what the session has
        self._diverged: dict[FetchedPartition, tuple[FetchPosition, EpochEnd]] = {}  # to be truncated
        self._syncing: dict[FetchedPartition, None] = {}  # what was fetched of them is being flushed
        self._refusals: dict[int, list[TopicPartition]] = {}  # of the answer that is processed, by error
        self._served_again: list[TopicPartition] = []  # in that answer, after a refusal that was logged
        self._is_failure_logged = False  # of the connection
        self._is_flush_slow = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._changed: asyncio.Event = asyncio.Event()  # there is something to fetch
        self._backoff_s = CONNECT_BACKOFF_MIN_S
        self._is_closed = False
        self._is_busy = False  # with an answer: the next request leaves afterwards
        self._is_scheduled = False  # at the end of this turn of the loop
        # Of the connection:
        self._connection: Connection | None = None
        self._channel: FetchChannel | None = None
        self._writer: FetchRequestWriter | None = None
        self._session = FetchSessionHandler(leader)
        self._lost: asyncio.Future[None] | None = None
        self._task = self._loop.create_task(self._run(), name=f"replica fetcher of broker {leader}")
        self._range_tasks: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    # ---- Partitions

    def add(self, partition: Partition) -> None:
        """Fetch a partition, or go on with it in a newer state."""
        key = partition_key(partition)
        known = self._partitions.get(key)
        if known is None or known.partition is not partition:
            if known is not None:
                self.remove(partition)
            known = self._partitions[key] = FetchedPartition(self, partition)
        known.end_backoff()
        known.is_stopped, known.backoff_s = False, 0.0
        assert partition.follower is not None
        partition.follower.attach(known)
        if partition.follower.fetch_state is not SYNCING:
            self._syncing.pop(known, None)  # the state whose flush would have ended it is gone
        self._touch(known)

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer."""
        key = partition_key(partition)
        known = self._partitions.pop(key, None)
        if known is None:
            return
        known.end_backoff()
        self._dirty.pop(known, None)
        self._syncing.pop(known, None)
        self._session.remove(key)
        self._continue_soon()

    def synced(self, each: FetchedPartition) -> None:
        """Continue to fetch the partition: at once if it is the last one that is flushed."""
        self._syncing.pop(each, None)
        if not self._is_fetched(each):
            return
        self._dirty[each] = None
        if self._syncing:
            self._continue_soon()  # the same round of the group commit may have flushed others
        else:
            self._is_flush_slow = False
            self._continue()

    def truncated(self, each: FetchedPartition, error: Exception | None) -> None:
        """Continue with a partition whose truncation has ended."""
        if not self._is_fetched(each):
            return
        if error is not None:
            self._not_truncated(each, error)
        self._touch(each)

    def _is_fetched(self, each: FetchedPartition) -> bool:
        """Return whether it was neither removed nor replaced by another replica of the partition."""
        return self._partitions.get(each.key) is each

    def _touch(self, each: FetchedPartition) -> None:
        if self._is_fetched(each):
            self._dirty[each] = None
            self._changed.set()
            self._continue_soon()

    async def close(self) -> None:
        """Stop fetching and close the connection."""
        self._is_closed = True
        for partition in self._partitions.values():
            partition.end_backoff()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        tasks = [self._task, *self._range_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disconnect()

    # ---- The connection

    async def _run(self) -> None:
        """Fetch until the fetcher is closed; after an error again, with a back-off."""
        while not self._is_closed:
            try:
                await self._fetch_until_lost()
            except _NETWORK_ERRORS as error:
                if not self._is_failure_logged:
                    self._is_failure_logged = True
                    log.info("fetching from broker %d failed, and is tried again: %s", self.leader, error)
            except Exception:
                log.exception("unexpected error of the replica fetcher of broker %d", self.leader)
            finally:
                self._close_channel()  # a cancelled task, too, leaves nothing that appends
            await self._disconnect()
            await asyncio.sleep(self._backoff_s * (0.75 + self._jitter() / 2))
            self._backoff_s = min(self._backoff_s * 2, CONNECT_BACKOFF_MAX_S)

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def _disconnect(self) -> None:
        self._close_channel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _fetch_until_lost(self) -> None:
        while not self._partitions:
            self._changed.clear()
            await self._changed.wait()
        connection = self._connection = await self._connect(self.leader)
        if connection.version_for(ApiKey.FETCH, at_most=replica_fetch.VERSION) != replica_fetch.VERSION:
            raise UnsupportedVersion(f"broker {self.leader} does not serve Fetch version {replica_fetch.VERSION}")
        config = self._config
        self._writer = FetchRequestWriter(
            connection.client_id,
            self._node_id,
            max_wait_ms=config.fetch_wait_max_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_response_max_bytes,
        )
        lost = self._lost = self._loop.create_future()
        self._session = FetchSessionHandler(self.leader)
        self._is_busy = False
        self._begin_session()
        self._channel = FetchChannel(connection, self)
        answer_s = (config.fetch_wait_max_ms + config.socket_timeout_ms) / 1000
        self._continue()
        while not lost.done():
            await asyncio.wait((lost,), timeout=answer_s / 2)
            if self._session.is_overdue(self._loop.time(), answer_s):
                raise RequestTimedOut(f"broker {self.leader} did not answer Fetch within {answer_s:g} s")
        lost.result()

    def disconnected(self, error: Exception) -> None:
        """Connect again."""
        self._channel = None
        if self._lost is not None and not self._lost.done():
            self._lost.set_exception(error)
            self._lost.exception()  # the task may be cancelled at the same moment

    def _begin_session(self) -> None:
        """Begin a session: the next request names all partitions. It leaves when all before it are answered."""
        self._session.begin(self._context.broker_epoch(self._node_id) or -1)
        self._dirty = dict.fromkeys(self._partitions.values())

    # ---- Requests

    def _continue_soon(self) -> None:
        """Send the next request at the end of this turn of the loop, with all that changes in it."""
        if not self._is_scheduled and not self._is_busy and self._channel is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._continue_scheduled)

    def _continue_scheduled(self) -> None:
        self._is_scheduled = False
        self._continue()

    def _continue(self) -> None:
        """Send the next request, unless the answer to the one before must come first or there is nothing to fetch."""
        channel, writer, session = self._channel, self._writer, self._session
        if channel is None or writer is None or self._is_busy or session.is_full:
            return
        if (self._context.broker_epoch(self._node_id) or -1) != session.broker_epoch:
            self._begin_session()  # this broker has registered again
        if session.awaits_answers:
            return
        if self._dirty:
            self._name_changed(writer)
        session.write_forgotten(writer)
        if not len(session) and not self._dirty:
            writer.discard()
            self._begin_session()  # all are in their back-off: each will be touched
            return
        if not len(session) or (writer.is_empty and not (session.is_idle and self._is_worth_waiting())):
            if self._dirty:
                self._continue_soon()  # one of those that were not considered yet may be named
            return
        channel.send(session.next_frame(writer, self._loop.time()))
        if self._dirty:
            self._continue_soon()  # there are others to name

    def _is_worth_waiting(self) -> bool:
        """Return whether a request that names nothing may leave: no flush is to come, or only a slow one."""
        if not self._syncing:
            return True
        if len(self._session) <= len(self._syncing):
            return False
        if not self._is_flush_slow and self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_PATIENCE_S, self._flush_takes_long)
        return self._is_flush_slow

    def _flush_takes_long(self) -> None:
        self._flush_timer = None
        if self._syncing:
            self._is_flush_slow = True
            self._continue()

    def _name_changed(self, writer: FetchRequestWriter) -> None:
        """Name the partitions whose position the session does not have, up to `NAMES_MAX`."""
        session, now_s = self._session, self._context.clock.monotonic()
        for each in tuple(itertools.islice(self._dirty, NAMES_MAX)):
            del self._dirty[each]
            if each in self._syncing:
                continue  # it is named when it is flushed
            partition = each.partition
            if partition.is_throttled and (wait_s := self._context.follower_quota.wait_s(now_s)):
                self._put_off(each, min(wait_s, THROTTLE_CHECK_S))
            position = partition.next_fetch() if each.may_be_fetched else None
            if position == session.position(each.key) and not each.is_repeated:
                continue
            each.is_repeated = False
            if position is None:
                session.remove(each.key)
            else:
                limit = FULL_DISK_BYTES if partition.log.health.is_full else self._config.fetch_max_bytes
                topic_id, index = each.key
                writer.name(
                    topic_id,
                    index,
                    leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start=position.log_start_offset,
                    max_bytes=max(limit, CATCH_UP_BYTES) if each.is_catching_up and limit > FULL_DISK_BYTES else limit,
                    high_watermark=partition.log.high_watermark,
                )
                session.name(each.key, position)

    # ---- Answers

    def answered(self, frame: memoryview) -> None:
        """Process an answer, and send the next request."""
        self._is_busy = True
        try:
            self._process(decode_fetch_answer(frame))
        except (KafkaError, MalformedRequest) as error:
            self._fail(error)
        except Exception as error:
            log.exception("unexpected error of the replica fetcher of broker %d", self.leader)
            self._fail(error)
        finally:
            self._is_busy = False
        self._continue()

    def _fail(self, error: Exception) -> None:
        channel = self._channel
        if channel is not None:
            channel.close()
        self.disconnected(error)

    def _process(self, answer: FetchAnswer) -> None:
        session = self._session
        number = session.answered(answer.correlation_id, self._loop.time())
        if number is None:
            return
        if answer.error_code in _SESSION_ERRORS:
            self._begin_session()
            return
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code)
        self._backoff_s = CONNECT_BACKOFF_MIN_S
        if self._is_failure_logged:
            self._is_failure_logged = False
            log.info("fetching from broker %d works again", self.leader)
        session.session_id = answer.session_id
        out_of_range: dict[FetchedPartition, FetchPosition] = {}
        for data in answer.partitions:
            key = data.topic_id, data.partition
            partition, position = self._partitions.get(key), session.asked_position(key, number)
            if partition is not None and position is not None:
                self._dirty[partition] = None
                self._take(partition, position, data, out_of_range)
        if self._refusals or self._served_again:
            self._log_refusals()
        if out_of_range:
            task = self._loop.create_task(self._find_range(out_of_range), name=f"find range on broker {self.leader}")
            self._range_tasks[task] = None
            task.add_done_callback(self._range_found)
        if answer.session_id == NO_SESSION:
            self._begin_session()  # the leader has no slot for it: each request names all partitions

    def _range_found(self, task: asyncio.Task[None]) -> None:
        self._range_tasks.pop(task, None)

    def _take(
        self,
        each: FetchedPartition,
        position: FetchPosition,
        data: FetchedData,
        out_of_range: dict[FetchedPartition, FetchPosition],
    ) -> None:
        """Process the answer for one partition, unless its position has changed since the request, or was refused.

        After a divergence or an error a later request may be answered with the leader's high watermark alone. It does
        not count before the position was compared with the leader's log: the log here may have to be truncated.
        """
        partition = each.partition
        if not each.may_be_fetched or partition.next_fetch() != position:
            each.is_repeated = True  # it may come back to the position whose answer is dropped
            return
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                each.is_paused = True
                out_of_range[each] = position
            elif data.error_code != ErrorCode.NONE:
                self._refused(each, error_for(data.error_code))
            elif data.diverging_epoch >= 0:
                each.is_paused = True
                if not self._diverged:
                    self._loop.call_soon(self._truncate_next)
                self._diverged[each] = position, EpochEnd(data.diverging_epoch, data.diverging_end)
            else:
                self._append(each, data)
        except StorageError:  # logged by the health of the log directory
            self._delay(each)
        except CorruptMessage as error:
            if not each.is_corrupt:
                each.is_corrupt = True
                log.warning("broker %d sent corrupt records of %s: %s", self.leader, partition.topic_partition, error)
            self._delay(each)
        except Exception:  # one partition must not hold up the others, which share the session
            log.exception(_UNEXPECTED, partition.topic_partition, self.leader)
            each.is_stopped = True
        follower = partition.follower
        if follower is not None and follower.fetch_state is SYNCING:
            self._syncing[each] = None

    def _truncate_next(self) -> None:
        """Begin the truncation of one partition in a turn of the loop."""
        if self._is_closed:
            return
        partition = next(iter(self._diverged))
        position, leader_end = self._diverged.pop(partition)
        if self._diverged:
            self._loop.call_soon(self._truncate_next)
        if not self._is_fetched(partition):
            return
        partition.is_paused = False
        try:
            if partition.partition.next_fetch() == position:
                partition.partition.truncate_to_leader(leader_end)
        except StorageError as error:
            self._not_truncated(partition, error)
        except Exception:
            log.exception(_UNEXPECTED, partition.partition.topic_partition, self.leader)
            partition.is_stopped = True
        self._touch(partition)

    def _not_truncated(self, each: FetchedPartition, error: Exception) -> None:
        log.warning("%s cannot be truncated: %s", each.partition.topic_partition, error)
        self._delay(each)

    def _append(self, each: FetchedPartition, data: FetchedData) -> None:
        partition, records = each.partition, data.records
        size = 0 if records is None else records.nbytes
        each.is_catching_up = size >= self._config.fetch_max_bytes
        if size:  # without records a refusal before it still counts: the leader does not know the position
            each.is_repeated = True
        now_ms = self._context.clock.wall_ms()
        if partition.is_throttled:
            self._context.follower_quota.record(size, self._context.clock.monotonic())
        is_full = partition.log.health.is_full
        partition.append_as_follower(
            records if records is not None and not is_full else _NO_RECORDS,
            high_watermark=data.high_watermark,
            log_start=data.log_start,
            now_ms=now_ms,
        )
        if is_full:
            self._delay(each)
            return
        each.backoff_s = 0.0
        if each.refused_s >= 0:
            each.refused_s = -1.0
            if each.is_refusal_logged:
                each.is_refusal_logged = False
                self._served_again.append(partition.topic_partition)
        if each.is_corrupt and size:
            each.is_corrupt = False
            log.info("broker %d sends valid records of %s again", self.leader, partition.topic_partition)

    def _refused(self, each: FetchedPartition, error: KafkaError) -> None:
        """Handle an error of one partition: wait for a newer term if it was fenced, else fetch it again later."""
        if error.code == ErrorCode.FENCED_LEADER_EPOCH:
            each.is_stopped = True
        else:
            now_s = self._loop.time()
            if each.refused_s < 0:
                each.refused_s = now_s
            elif not each.is_refusal_logged and now_s - each.refused_s >= REFUSAL_PATIENCE_S:
                each.is_refusal_logged = True
                self._refusals.setdefault(error.code, []).append(each.partition.topic_partition)
            self._delay(each)

    def _log_refusals(self) -> None:
        """Log the refusals of one answer in a line for each error, and their ends in one: there may be thousands."""
        refusals, self._refusals = self._refusals, {}
        for code, partitions in refusals.items():
            error = error_for(code)
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(level, "broker %d does not serve %s: %s", self.leader, _named(partitions), error.code.name)
        served, self._served_again = self._served_again, []
        if served:
            log.info("broker %d serves %s again", self.leader, _named(served))

    def _delay(self, each: FetchedPartition) -> None:
        each.backoff_s = min(max(each.backoff_s * 2, PARTITION_BACKOFF_MIN_S), self._config.fetch_backoff_ms / 1000)
        each.is_repeated = True  # the back-off may be over before the next request, which then names it again
        self._dirty[each] = None
        self._put_off(each, each.backoff_s)

    def _put_off(self, each: FetchedPartition, seconds: float) -> None:
        each.end_backoff()
        each.backoff = self._loop.call_later(seconds, self._backoff_over, each)

    def _backoff_over(self, each: FetchedPartition) -> None:
        each.backoff = None
        self._touch(each)

    async def _find_range(self, positions: dict[FetchedPartition, FetchPosition]) -> None:
        """Bring logs into the range of their leader; it is asked again later if it is not known or they are in it."""
        ranges: dict[Partition, LeaderRange] = {}
        try:
            ranges = await fetch_leader_ranges(
                self._connect,
                self.leader,
                [each.partition for each in positions],
                node_id=self._node_id,
                timeout_s=self._config.socket_timeout_ms / 1000,
            )
        except _NETWORK_ERRORS as error:
            log.info("broker %d is asked again for the offsets of its logs: %s", self.leader, error)
        except Exception:
            log.exception("unexpected error while broker %d was asked for the offsets of its logs", self.leader)
        for each, position in positions.items():
            if not self._is_fetched(each):
                continue
            each.is_paused = False
            partition = each.partition
            leader_range = ranges.get(partition)
            if leader_range is None or partition.next_fetch() != position:
                self._delay(each)
                continue
            try:
                if not leader_range.take_into(partition):
                    self._delay(each)
            except StorageError as error:
                self._not_truncated(each, error)
            except Exception:
                log.exception(_UNEXPECTED, partition.topic_partition, self.leader)
                each.is_stopped = True
            self._touch(each)
