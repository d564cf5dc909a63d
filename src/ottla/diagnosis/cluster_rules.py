"""Holds the rules about the cluster, its brokers and its clients."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.client.quota_admin import CLIENT_ID, entity_text
from ottla.diagnosis.facts import Facts, total
from ottla.diagnosis.rule import Reason, Rule, Subject
from ottla.diagnosis.wording import count_of, duration, named

SKEW_S = 5.0
EXPIRY_DAYS = 30
CLIENT_S = 86_400


def _missing(facts: Facts, name: str) -> Iterator[Reason]:
    gone = [node for node in facts.health.missing if name in {"", str(node)}]
    if gone:
        events = [event for event in facts.happened("election", "isr-change", within_s=86_400) if "gone" in event.cause]
        why = f" ({events[0].cause})" if events else ""
        yield Reason(
            f"broker {named(gone)} is down: replicas name it, and it is not registered{why}",
            f"start broker {named(gone)}, or move its replicas: ottla cluster drain {gone[0]}",
        )


def _unknown_broker(facts: Facts, name: str) -> Iterator[Reason]:
    known = {str(node.node_id) for node in facts.described.nodes} | set(map(str, facts.health.missing))
    if name and name not in known:
        yield Reason(f"there is no broker {name}", "list them with ottla cluster brokers")


def _unreachable(facts: Facts, name: str) -> Iterator[Reason]:
    for node, why in facts.health.unreachable.items():
        if name in {"", str(node)}:
            advertised = next((str(broker.address) for broker in facts.described.nodes if broker.node_id == node), "")
            yield Reason(
                f"broker {node} does not answer at its advertised listener {advertised}: {why}",
                "set advertised.listeners of the broker to an address that clients reach, or start it",
            )


def _store(facts: Facts, name: str) -> Iterator[Reason]:
    for trouble in facts.health.store_troubles:
        if not name or trouble.startswith((f"broker {name}:", "all brokers")):
            yield Reason(
                trouble, "check that ZooKeeper runs and is reached: zookeeper.connect, and the log of the broker"
            )


def _controller(facts: Facts, name: str) -> Iterator[Reason]:
    if name:
        return
    if not facts.health.has_controller:
        yield Reason("the cluster has no controller: nothing can be created, elected or changed", "start the brokers")
    elif facts.health.moves.refusal:
        controller = facts.described.controller_id
        yield Reason(
            f"the controller, broker {controller}, does not answer: {facts.health.moves.refusal}",
            f"ottla why broker {controller}",
        )


def _offline_dir(facts: Facts, name: str) -> Iterator[Reason]:
    for log_dir in facts.health.log_dirs:
        if log_dir.is_offline and name in {"", str(log_dir.node_id)}:
            disk = facts.happened("disk", node=log_dir.node_id, within_s=7 * 86_400)
            why = f" ({disk[0].cause})" if disk else ""
            yield Reason(
                f"log directory {log_dir.path} of broker {log_dir.node_id} is offline until a restart{why}",
                "fix or replace the disk, then restart the broker",
            )


def _full_dir(facts: Facts, name: str) -> Iterator[Reason]:
    for log_dir in facts.health.log_dirs:
        if log_dir.is_full and name in {"", str(log_dir.node_id)}:
            yield Reason(
                f"log directory {log_dir.path} of broker {log_dir.node_id} is full: records are refused",
                "free space: ottla topic trim TOPIC --to -1d, lower retention.bytes, or delete topics; ottla "
                "cluster log-dirs",
            )


def _clock(facts: Facts, name: str) -> Iterator[Reason]:
    for node, skew_s in sorted(facts.clock_skews_s.items()):
        if abs(skew_s) >= SKEW_S and name in {"", str(node)}:
            side = "after" if skew_s > 0 else "before"
            yield Reason(
                f"the clock of broker {node} shows a time {duration(abs(skew_s))} {side} this machine's: retention, "
                "timestamps and tokens go by it",
                "set the clock by NTP (timedatectl status)",
            )


def _slow_fsync(facts: Facts, name: str) -> Iterator[Reason]:
    slow = facts.happened("slow-fsync", node=int(name) if name else -1)
    if slow:
        yield Reason(
            f"slow fsync, {count_of(total(slow), 'time')} in the last hour on broker {slow[0].broker}: {slow[0].cause}",
            "give the log directory a disk of its own; compare with ottla bench",
        )


def _slow_request(facts: Facts, name: str) -> Iterator[Reason]:
    slow = facts.happened("slow-request", node=int(name) if name else -1)
    if slow:
        yield Reason(
            f"slow requests, {count_of(total(slow), 'time')} in the last hour on broker {slow[0].broker}: "
            f"{slow[0].cause}, of client {slow[0].client or '-'}",
            f"grep the log for {slow[0].kind.replace('-', ' ')}; ottla why client {slow[0].client or 'ID'}",
        )


def _connection_limit(facts: Facts, name: str) -> Iterator[Reason]:
    refused = [
        event
        for event in facts.happened("refused-connection", node=int(name) if name else -1)
        if event.error == "connection limit"
    ]
    if refused:
        yield Reason(
            f"connections were refused {count_of(total(refused), 'time')} on broker {refused[0].broker}: "
            f"{refused[0].cause}",
            "find the client that opens so many, or: ottla config set broker max.connections=20000",
        )


def _bad_requests(facts: Facts, name: str) -> Iterator[Reason]:
    refused = [
        event
        for event in facts.happened("refused-connection", node=int(name) if name else -1)
        if event.error != "connection limit"
    ]
    if refused:
        yield Reason(
            f"connections of {refused[0].client} were closed {count_of(total(refused), 'time')}: {refused[0].cause}",
            "correct the settings of that client: port, security.protocol, sasl.mechanism, password",
        )


def _session(facts: Facts, name: str) -> Iterator[Reason]:
    lost = [event for event in facts.happened("store-session", node=int(name) if name else -1) if "lost" in event.cause]
    if lost:
        yield Reason(
            f"broker {lost[0].broker} lost its session with the metadata store {count_of(total(lost), 'time')} in the "
            "last hour",
            "look for pauses of the broker and of ZooKeeper (swap, disk); raise zookeeper.session.timeout.ms",
        )


def _certificate(facts: Facts, name: str) -> Iterator[Reason]:
    for node, days in sorted(facts.certificates.items()):
        if days <= EXPIRY_DAYS and name in {"", str(node)}:
            yield Reason(
                f"the certificate of broker {node} expires in {days:.0f} days",
                "replace the file of ssl.keystore.location: brokers read it again by themselves",
            )


def _is_alone(facts: Facts) -> bool:
    """Return whether there is one broker of Ottla that no other can join: its internal topics have one replica."""
    configs = facts.broker_configs.values()
    return len(facts.described.nodes) == 1 and any(config.get("zookeeper.connect", "none") == "" for config in configs)


def _offsets_topic(facts: Facts, name: str) -> Iterator[Reason]:
    brokers = len(facts.described.nodes)
    for topic, key in (
        ("__consumer_offsets", "offsets.topic.replication.factor"),
        ("__transaction_state", "transaction.state.log.replication.factor"),
    ):
        factor = facts.config(key)
        exists = any(known.name == topic for known in facts.health.topics)
        if not name and factor.isdigit() and int(factor) > brokers and not exists and not _is_alone(facts):
            yield Reason(
                f"{topic} cannot be created: {key}={factor}, and there are {count_of(brokers, 'broker')}",
                f"start {int(factor) - brokers} more, or set {key}={brokers} on the brokers",
            )


def _imbalance(facts: Facts, name: str) -> Iterator[Reason]:
    led: dict[int, int] = {node.node_id: 0 for node in facts.described.nodes}
    preferred = dict(led)
    for topic in facts.health.topics:
        for p in topic.partitions:
            if p.leader_id in led:
                led[p.leader_id] += 1
            if p.replicas and p.replicas[0] in preferred:
                preferred[p.replicas[0]] += 1
    for node in sorted(led):
        if name in {"", str(node)} and preferred[node] >= 2 and led[node] <= preferred[node] // 2:
            yield Reason(
                f"preferred leader imbalance: broker {node} leads {led[node]} partitions and is the preferred "
                "leader of "
                f"{preferred[node]}",
                "ottla cluster leaders --elect preferred, or set auto.leader.rebalance.enable=true",
            )


def _moves(facts: Facts, name: str) -> Iterator[Reason]:
    for move in facts.health.moves.running:
        waiting = [node for node in move.adding if node in facts.health.missing]
        if waiting and name in {"", *map(str, waiting)}:
            yield Reason(
                f"the reassignment of {move.tp} does not end: broker {named(waiting)}, which it adds, is down",
                f"start broker {named(waiting)}, or ottla cluster reassign cancel",
            )


def _versions(facts: Facts, name: str) -> Iterator[Reason]:
    if name or len(facts.versions) < 2:
        return
    nodes = sorted(facts.versions)
    for node in nodes[1:]:
        differ = sorted(
            api
            for api in {*facts.versions[nodes[0]], *facts.versions[node]}
            if facts.versions[nodes[0]].get(api) != facts.versions[node].get(api)
        )
        if differ:
            yield Reason(
                f"brokers {nodes[0]} and {node} run different releases: they serve other versions of "
                f"{named(differ[:3])}",
                "end the upgrade: restart the older brokers with the newer release",
            )
            return


# ---- Clients


def _client_quota(facts: Facts, name: str) -> Iterator[Reason]:
    throttled = facts.happened("throttled-request", client=name)
    if not throttled:
        return
    of_client = [quotas for quotas in facts.quotas if quotas.entity.get(CLIENT_ID, name) in {name, None}]
    shown = "; ".join(
        f"{key}={value:g} of {entity_text(quotas.entity)}"
        for quotas in of_client
        for key, value in quotas.values.items()
    )
    yield Reason(
        f"throttled by a quota {count_of(total(throttled), 'time')} in the last hour: {throttled[0].cause}"
        + (f" ({shown})" if shown else ""),
        f"ottla quota set --client-id {name} producer_byte_rate=10MiB (or consumer_byte_rate, request_percentage)",
    )


def _client_refused(facts: Facts, name: str) -> Iterator[Reason]:
    refused = facts.happened("refused-request", client=name, within_s=CLIENT_S)
    seen: set[str] = set()
    for event in refused:
        if event.error in seen:
            continue
        seen.add(event.error)
        what = next(
            (f"{kind} {value}" for kind, value in (("topic", event.topic), ("group", event.group)) if value), ""
        )
        yield Reason(
            f"refused {count_of(event.count, 'time')}: {event.error}, {event.cause}",
            f"ottla why {what}" if what else "correct the client",
        )


def _client_slow(facts: Facts, name: str) -> Iterator[Reason]:
    slow = facts.happened("slow-request", client=name, within_s=CLIENT_S)
    if slow:
        yield Reason(
            f"{count_of(total(slow), 'slow request')}: {slow[0].cause} on broker {slow[0].broker}",
            f"ottla why broker {slow[0].broker}",
        )


def _client_groups(facts: Facts, name: str) -> Iterator[Reason]:
    for group_id, group in sorted(facts.groups.items()):
        mine = [member for member in group.lag.group.members if member.client_id == name]
        late = [event for event in facts.happened("rebalance", group=group_id) if event.cause.startswith(f"{name} (")]
        late = [event for event in late if "max.poll" in event.cause or "session.timeout" in event.cause]
        if late:
            yield Reason(f"in group {group_id}: {late[0].cause}", f"ottla why group {group_id}")
        elif mine and not any(member.partitions for member in mine):
            yield Reason(f"in group {group_id} it has no partition", f"ottla why group {group_id}")


def _client_unknown(facts: Facts, name: str) -> Iterator[Reason]:
    in_groups = any(m.client_id == name for group in facts.groups.values() for m in group.lag.group.members)
    if not in_groups and not any(event.client == name for event in facts.events or ()):
        where = (
            "no group has it, and no event" if facts.events is not None else "no group has it; brokers keep no events"
        )
        yield Reason(
            f"nothing is known of client {name}: {where}",
            "check its client.id, and that it connects to these brokers"
            if facts.events is not None
            else "set ottla.http.listener or ottla.events.topic.enable=true on the brokers",
        )


_B, _C = Subject.BROKER, Subject.CLIENT
BROKER_RULES = (
    Rule("no such broker", _B, "brokers", _unknown_broker),
    Rule("dead broker", _B, "brokers, replicas, events", _missing),
    Rule("offline log directory", _B, "log directories, events", _offline_dir),
    Rule("full disk", _B, "log directories", _full_dir),
    Rule("no session with the store", _B, "DescribeCluster", _store),
    Rule("broker does not answer", _B, "its advertised address", _unreachable),
    Rule("no controller", _B, "DescribeCluster", _controller),
    Rule("too few brokers for an internal topic", _B, "settings, brokers", _offsets_topic),
    Rule("clock", _B, "the brokers' time", _clock),
    Rule("certificate expires", _B, "TLS handshake", _certificate),
    Rule("session lost", _B, "events", _session),
    Rule("slow fsync", _B, "events", _slow_fsync),
    Rule("connection limit", _B, "events", _connection_limit),
    Rule("bad requests", _B, "events", _bad_requests),
    Rule("slow requests", _B, "events", _slow_request),
    Rule("reassignment stands still", _B, "reassignments, brokers", _moves),
    Rule("mixed releases", _B, "ApiVersions", _versions),
    Rule("leader imbalance", _B, "leaders", _imbalance),
)
CLIENT_RULES = (
    Rule("throttled", _C, "events, quotas", _client_quota),
    Rule("requests refused", _C, "events", _client_refused),
    Rule("late in a group", _C, "groups, events", _client_groups),
    Rule("slow", _C, "events", _client_slow),
    Rule("unknown client", _C, "groups, events", _client_unknown),
)
