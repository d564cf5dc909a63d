"""Holds the rules about topics."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.core.settings import LONG_MAX
from ottla.diagnosis.facts import Facts, SeenEvent, total
from ottla.diagnosis.rule import Check, Reason, Rule, Subject
from ottla.diagnosis.wording import count_of, duration, named

FUTURE_MS = 3_600_000
IDLE_S = 7 * 86_400
HOT_SHARE, HOT_RECORDS_MIN = 0.8, 100
SMALL_BATCH_RECORDS, SMALL_BATCHES_MIN = 2.0, 50
DAY_MS = 86_400_000


def _unknown(facts: Facts, name: str) -> Iterator[Reason]:
    if name not in facts.topics:
        denied = _refused(facts, name, "TOPIC_AUTHORIZATION_FAILED")
        if "TOPIC_AUTHORIZATION_FAILED" in facts.unread.get(f"topic {name}", ""):
            yield Reason(
                f"this client may not describe topic {name}: no ACL allows it"
                + (f" ({denied[0].cause})" if denied else ""),
                f"ottla acl create --allow-principal User:NAME --operation describe --topic {name}",
            )
        else:
            yield Reason(f"there is no topic {name}", "list the topics with ottla topic list")


def _offline(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    without = [] if topic is None else [p for p in topic.info.partitions if p.leader_id < 0]
    if not without:
        return
    down = sorted({replica for p in without for replica in p.replicas}.intersection(facts.health.missing))
    elections = facts.happened("election", topic=name, within_s=7 * 86_400)
    why = f"broker {named(down)} with their replicas is down" if down else "no replica that is in sync can lead"
    if elections and not down:
        why = elections[0].cause
    yield Reason(
        f"{count_of(len(without), 'partition')} of {len(topic.info.partitions) if topic else 0} have no leader: {why}",
        f"start broker {named(down)}" if down else "ottla doctor, for the brokers of its replicas",
    )


def _unclean(facts: Facts, name: str) -> Iterator[Reason]:
    unclean = [event for event in facts.happened("election", topic=name, within_s=7 * 86_400) if event.error]
    if unclean:
        yield Reason(
            f"unclean election of {name}-{unclean[0].partition}: {unclean[0].cause}",
            f"compare with the producers' records; ottla config set topic/{name} unclean.leader.election.enable=false",
        )


def _under_min_isr(facts: Facts, name: str) -> Iterator[Reason]:
    under = [p for p in facts.health.partitions if p.tp.topic == name and p.is_under_min_isr]
    if under:
        yield Reason(
            f"{count_of(len(under), 'partition')} refuse acks=all: {under[0].in_sync} in sync, and "
            f"min.insync.replicas={under[0].required}; {_why_out_of_sync(facts, name)}",
            _fix_of_replicas(facts),
        )


def _under_replicated(facts: Facts, name: str) -> Iterator[Reason]:
    under = [p for p in facts.health.partitions if p.tp.topic == name and p.is_under_replicated]
    if under and not any(p.is_under_min_isr for p in under):
        yield Reason(
            f"{count_of(len(under), 'partition')} are under-replicated, {under[0].tp} with {under[0].in_sync} of "
            f"{under[0].replicas} in sync; {_why_out_of_sync(facts, name)}",
            _fix_of_replicas(facts),
        )


def _why_out_of_sync(facts: Facts, name: str) -> str:
    if facts.health.missing:
        return f"broker {named(facts.health.missing)} is down"
    if facts.health.unreachable:
        return f"broker {named(facts.health.unreachable)} does not answer"
    full = [d for d in facts.health.log_dirs if d.is_full or d.is_offline]
    if full:
        return f"{full[0].path} of broker {full[0].node_id} is {'full' if full[0].is_full else 'offline'}"
    changes = facts.happened("isr-change", topic=name)
    return changes[0].cause if changes else "a follower is too slow, or its disk"


def _fix_of_replicas(facts: Facts) -> str:
    if facts.health.missing:
        return f"start broker {named(facts.health.missing)}"
    return "ottla doctor; look at the log of the brokers that are not in sync"


def _transaction(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None:
        return
    for tp, stable in sorted(topic.stable_ends.items()):
        if stable < topic.ends.get(tp, stable):
            opened = next((candidate for candidate in topic.open_transactions if candidate.tp == tp), None)
            who = f"producer id {opened.producer_id}" if opened is not None else "a producer"
            if opened is not None and opened.transactional_id:
                who = f"transactional id {opened.transactional_id}"
            since = (
                f", without a record for {duration((facts.now_ms - opened.last_timestamp_ms) / 1000)}" if opened else ""
            )
            yield Reason(
                f"a transaction of {who} holds the last stable offset of {tp} at {stable}, "
                f"{topic.ends[tp] - stable} offsets below the end{since}: readers of committed records wait",
                f"ottla txn abort {opened.transactional_id}"
                if opened is not None and opened.transactional_id
                else f"ottla txn hanging {name}",
            )
            return


def _refused(facts: Facts, name: str, *errors: str) -> list[SeenEvent]:
    return [event for event in facts.happened("refused-request", topic=name) if event.error in errors]


def _refusal(errors: tuple[str, ...], cause: str, fix: str) -> Check:
    def check(facts: Facts, name: str) -> Iterator[Reason]:
        refused = _refused(facts, name, *errors)
        if refused:
            who = f"client {refused[0].client}" if refused[0].client else "a client"
            topic = facts.topics.get(name)
            limit = "" if topic is None else topic.config.get("max.message.bytes", "")
            fields = {"who": who, "times": count_of(total(refused), "time"), "why": refused[0].cause, "limit": limit}
            yield Reason(cause.format(**fields), fix.format(topic=name, client=refused[0].client or "ID", **fields))

    return check


def _future(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    for tp, newest_ms in sorted({} if topic is None else topic.newest_ms.items()):
        if newest_ms > facts.now_ms + FUTURE_MS:
            ahead = duration((newest_ms - facts.now_ms) / 1000)
            yield Reason(
                f"records of {tp} have timestamps {ahead} in the future: a producer's clock is wrong, and "
                "retention keeps "
                "their segments so much longer",
                "set the producer's clock by NTP; refuse such records: ottla config set "
                f"topic/{name} message.timestamp.after.max.ms={FUTURE_MS}",
            )
            return


def _hot(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None or len(topic.ends) < 2 or topic.records < HOT_RECORDS_MIN:
        return
    counts = {tp: end - topic.starts.get(tp, 0) for tp, end in topic.ends.items()}
    hottest = max(counts, key=counts.__getitem__)
    if counts[hottest] >= HOT_SHARE * topic.records and len(counts) * counts[hottest] > 1.5 * topic.records:
        yield Reason(
            f"hot partition: {hottest} has {100 * counts[hottest] // topic.records} % of the records of "
            f"{len(counts)} partitions: most records have the same key, or producers name the partition",
            "spread the key, or produce without one; partitions alone do not help",
        )


def _small_batches(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None or topic.sample.batches < SMALL_BATCHES_MIN:
        return
    sample = topic.sample
    if sample.records / sample.batches < SMALL_BATCH_RECORDS:
        yield Reason(
            f"small batches: {sample.records / sample.batches:.1f} records and "
            f"{sample.size_bytes // sample.batches} bytes in each of the last {sample.batches}",
            "set linger.ms=20 and batch.size=65536 in the producer, and do not flush after each record",
        )


def _compaction(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None or "compact" not in topic.config.get("cleanup.policy", ""):
        return
    if facts.config("log.cleaner.enable") == "false":
        yield Reason(
            "compaction cannot run: log.cleaner.enable=false on the brokers",
            "set log.cleaner.enable=true and restart the brokers",
        )
    failed = facts.happened("compaction", topic=name, within_s=7 * 86_400)
    if failed:
        yield Reason(
            f"compaction of {name}-{failed[0].partition} cannot run: {failed[0].cause}", "ottla log verify DIR"
        )
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms >= 30 * DAY_MS:
        shown = "for ever" if lag_ms == LONG_MAX else f"for {duration(lag_ms / 1000)}"
        yield Reason(
            f"compaction cannot run: min.compaction.lag.ms={lag_ms} keeps every record {shown}",
            f"ottla config set topic/{name} min.compaction.lag.ms=0",
        )
    segment_bytes = topic.number("segment.bytes", 1 << 30)
    if topic.sizes and topic.records >= 1_000 and max(topic.sizes.values()) < segment_bytes // 100:
        yield Reason(
            "compaction cannot run yet: the active segment is never compacted, and "
            f"segment.bytes={segment_bytes} is far "
            f"from full ({max(topic.sizes.values())} bytes)",
            f"ottla config set topic/{name} segment.ms=3600000",
        )


def _one_replica(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None or topic.info.internal or len(facts.described.nodes) < 2:
        return
    replicas = {len(p.replicas) for p in topic.info.partitions}
    if replicas == {1}:
        yield Reason(
            f"it has one replica, though there are {len(facts.described.nodes)} brokers: a lost disk loses it",
            f"ottla cluster reassign plan {name} --replication-factor 3",
        )
    needed = topic.number("min.insync.replicas", 1)
    if needed > 1 and needed >= max(replicas, default=0):
        yield Reason(
            f"min.insync.replicas={needed} of {max(replicas)} replicas: acks=all is refused whenever one broker "
            "restarts",
            f"ottla config set topic/{name} min.insync.replicas={max(1, max(replicas) - 1)}",
        )


def _moved_leaders(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    moved = [p for p in topic.info.partitions if p.leader_id >= 0 and p.leader_id != p.replicas[0]] if topic else []
    if topic is not None and moved and len(moved) * 2 >= len(topic.info.partitions):
        elections = facts.happened("election", topic=name, within_s=86_400)
        why = f", since {elections[0].cause}" if elections else ""
        yield Reason(
            f"{count_of(len(moved), 'partition')} of {len(topic.info.partitions)} are not led by their preferred "
            f"replica{why}",
            "ottla cluster leaders --elect preferred",
        )


def _idle(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is None or topic.info.internal or not topic.ends:
        return
    if not any(topic.ends.values()):
        yield Reason("idle: no record was ever produced to it", f"ottla topic delete {name}, if it is not needed")
        return
    newest_ms = max(topic.newest_ms.values(), default=-1)
    if newest_ms >= 0 and facts.now_ms - newest_ms > IDLE_S * 1000:
        yield Reason(
            f"idle: the newest record is {duration((facts.now_ms - newest_ms) / 1000)} old",
            f"look for its producer; ottla topic delete {name}, if it is not needed",
        )


def _unreadable(facts: Facts, name: str) -> Iterator[Reason]:
    topic = facts.topics.get(name)
    if topic is not None and topic.refusal and all(p.leader_id >= 0 for p in topic.info.partitions):
        yield Reason(f"its offsets cannot be read: {topic.refusal}", "ottla doctor")


_T = Subject.TOPIC
TOPIC_RULES: tuple[Rule, ...] = (
    Rule("no such topic", _T, "topics, events", _unknown),
    Rule("no leader", _T, "topics, brokers, events", _offline),
    Rule("unclean election", _T, "events", _unclean),
    Rule("under min ISR", _T, "ISR, settings, events", _under_min_isr),
    Rule("under-replicated", _T, "ISR, events", _under_replicated),
    Rule("stuck transaction", _T, "last stable offsets, producers, transactions", _transaction),
    Rule(
        "producer fenced",
        _T,
        "events",
        _refusal(
            ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"),
            "the producer of {who} was fenced {times}: another one has its transactional.id ({why})",
            "give each producer a transactional.id of its own, or stop the older process",
        ),
    ),
    Rule(
        "record too large",
        _T,
        "events, settings",
        _refusal(
            ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"),
            "{who} sent a batch above max.message.bytes={limit} {times}: {why}",
            "ottla config set topic/{topic} max.message.bytes=10MiB, or lower max.request.size and batch.size of "
            "the producer",
        ),
    ),
    Rule(
        "invalid records",
        _T,
        "events",
        _refusal(
            ("INVALID_RECORD", "INVALID_TIMESTAMP"),
            "records of {who} were refused {times}: {why}",
            "let the producer set what the topic asks for: ottla topic describe {topic}",
        ),
    ),
    Rule(
        "wrong codec",
        _T,
        "events",
        _refusal(
            ("UNSUPPORTED_COMPRESSION_TYPE",),
            "wrong codec: {who} compresses in a way that was refused {times}: {why}",
            "set compression.type=lz4 in the producer, or use a newer client library",
        ),
    ),
    Rule(
        "topic access denied",
        _T,
        "events",
        _refusal(
            ("TOPIC_AUTHORIZATION_FAILED",),
            "{why}",
            "ottla acl create --allow-principal User:NAME --operation read --operation write --topic {topic}",
        ),
    ),
    Rule(
        "writes fail",
        _T,
        "events",
        _refusal(("KAFKA_STORAGE_ERROR",), "writes were refused {times} by a disk: {why}", "ottla doctor"),
    ),
    Rule(
        "fetch out of range",
        _T,
        "events",
        _refusal(
            ("OFFSET_OUT_OF_RANGE",),
            "{who} asked for an offset that is not there {times}: {why}",
            "ottla group list, and ottla why group NAME for the groups that read it",
        ),
    ),
    Rule("timestamps in the future", _T, "timestamps", _future),
    Rule("compaction cannot run", _T, "settings, sizes, events", _compaction),
    Rule("offsets unreadable", _T, "offsets", _unreadable),
    Rule("hot partition", _T, "offsets", _hot),
    Rule("small batches", _T, "the last batches", _small_batches),
    Rule("too few replicas", _T, "replicas, settings", _one_replica),
    Rule("leaders moved", _T, "leaders, events", _moved_leaders),
    Rule("idle", _T, "offsets, timestamps", _idle),
)
