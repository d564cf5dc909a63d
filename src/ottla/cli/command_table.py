"""Lists the commands of `ottla`: what `ottla --help` shows, without an import of typer or of a command."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

ABOUT = "A commit log that speaks Kafka's protocol: `ottla server` starts a broker, the rest use any Kafka broker."


class Command(NamedTuple):
    """A command of `ottla`: the module that declares it, and its line in `ottla --help`, which imports no module."""

    module: str
    summary: str


# in the order of `ottla --help`
COMMANDS = MappingProxyType(
    {
        "server": Command("ottla.cli.server", "Start a broker."),
        "up": Command("ottla.cli.up", "Run a cluster on this machine: ZooKeeper and several brokers."),
        "topic": Command("ottla.cli.topic", "Topics."),
        "produce": Command("ottla.cli.produce", "Write records to a topic and wait for the acknowledgements."),
        "consume": Command("ottla.cli.consume", "Print the records of topics."),
        "group": Command("ottla.cli.group", "Groups of all types: classic, consumer and share."),
        "top": Command(
            "ottla.cli.top",
            "Show brokers, topics, partitions, groups, clients and requests by their rates, until q or Ctrl-C.",
        ),
        "client": Command("ottla.cli.client", "Show what clients have pushed of their own metrics."),
        "txn": Command("ottla.cli.txn", "Transactions."),
        "config": Command("ottla.cli.config", "Settings of topics and brokers."),
        "acl": Command("ottla.cli.acl", "Access control lists: who may do what."),
        "user": Command("ottla.cli.user", "Users who sign in with SCRAM."),
        "quota": Command("ottla.cli.quota", "Limits of users, clients and addresses."),
        "token": Command("ottla.cli.token", "Delegation tokens."),
        "certs": Command("ottla.cli.certs", "Certificates for TLS."),
        "cluster": Command("ottla.cli.cluster", "The cluster and its brokers."),
        "why": Command(
            "ottla.cli.why",
            "Say why a group, a topic, a client or a broker is not well: a line with the cause, and one with the fix.",
        ),
        "doctor": Command(
            "ottla.cli.doctor",
            "Look for all that is not well: names, ports, TLS, sign-in, brokers, disks, topics, groups and clients.",
        ),
        "bundle": Command(
            "ottla.cli.bundle",
            "Pack settings, health, log directories, groups, events, logs and versions into one file, without secrets.",
        ),
        "console": Command(
            "ottla.cli.console",
            "Serve a web console: topics, messages, groups, transactions, and why something is not well.",
        ),
        "mirror": Command("ottla.cli.mirror", "Copies of topics and group offsets in another cluster."),
        "profile": Command("ottla.cli.profile", "Named clusters, to use instead of --brokers."),
        "log": Command("ottla.cli.log", "Log directories and their files."),
        "bench": Command(
            "ottla.cli.bench",
            "Measure a broker with acks=all: bulk producing, consuming, and the latency of single records.",
        ),
        "pipeline": Command("ottla.cli.pipeline", "Topics into tables with Spark."),
        "demo": Command(
            "ottla.cli.demo",
            "Load a real web access log through a broker into tables, a topic of traffic and a report, and audit them.",
        ),
    }
)
