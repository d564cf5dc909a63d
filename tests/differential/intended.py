"""Every difference between Ottla's answers and Apache Kafka's that is meant, with its reason.

A difference that is not in this table fails the test, and so does a row of the table that no longer occurs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.kafka_jars import NEWEST, OLDEST, VERSION


@dataclass(frozen=True, slots=True)
class Intended:
    """One meant difference: where it shows (regular expressions over the whole text), and why."""

    api: str
    label: str
    path: str
    why: str
    kafka: str = ""
    """The version of Apache Kafka that differs, if others do not."""

    @property
    def applies(self) -> bool:
        """Whether the Kafka that is compared with is one that differs."""
        return self.kafka in {"", VERSION}

    def is_of(self, api: str, label: str) -> bool:
        """Whether this row speaks of an answer."""
        return bool(re.fullmatch(self.api, api) and re.fullmatch(self.label, label))

    def covers(self, api: str, label: str, path: str) -> bool:
        """Whether this row speaks of a difference found."""
        return self.is_of(api, label) and bool(re.fullmatch(self.path, path))


LATER = "served by a later version of Ottla; what is not served is not listed (docs/protocol-support.md)"
NEWER = "Ottla also serves the version that Apache Kafka added after 4.1"
CAUTIOUS = "bounded by default: Ottla's own default is lower, and the setting is Kafka's"

INTENDED: tuple[Intended, ...] = (
    # ---- ApiVersions
    Intended(
        "api_versions", "listed, .*", r"api_keys\.(88|89|93)", f"streams groups (KIP-1071): {LATER}", kafka=NEWEST
    ),
    Intended("api_versions", "listed, .*", r"api_keys\.(80|81|94)", "KRaft's own: Ottla has no Raft quorum"),
    Intended(
        "api_versions",
        "listed, .*|(an unknown|negative) version",
        r"api_keys\.(2|8|9|18|27|28|35|42|78|79|85|87|90)",
        NEWER,
        kafka=OLDEST,
    ),
    Intended(
        "api_versions",
        "listed, .*",
        r"(supported_features|finalized_features)\..*|finalized_features_epoch",
        "features whose APIs are not all served are not listed (KRaft, streams groups, the newest group protocols)",
    ),
    # ---- Share groups
    Intended(
        "find_coordinator",
        "key .*",
        r"coordinators\[0\]\.error_message",
        "Ottla says in words what is wrong with the key of a share partition",
    ),
    # ---- Produce
    Intended(
        "produce",
        ".*",
        r".*\.error_message",
        "Ottla says in words what was wrong; Kafka leaves the text of most of these errors null",
    ),
    Intended(
        "produce",
        ".*",
        r".*\.log_start_offset",
        "Kafka returns the log start with some of its errors and not with others; Ottla with none",
    ),
    Intended("produce", "codec 5", r".*\.error_code", "INVALID_RECORD; Kafka answers UNKNOWN_SERVER_ERROR"),
    Intended(
        "produce",
        "the last again|five back|first again",
        r".*\.log_append_time",
        "a duplicate's answer is the first answer again: no append time in a topic with create times",
    ),
    Intended("produce", "a negative epoch", r".*\.error_code", "a producer id without an epoch is INVALID_RECORD"),
    Intended(
        "produce",
        ".*, offsets (out of order|that begin later)",
        ".*",
        "INVALID_RECORD wherever records are validated; Kafka returns UNKNOWN_SERVER_ERROR for compressed ones; it stores, "
        "or renumbers, the others",
    ),
    Intended(
        "produce",
        ".*, (bytes of no codec|lz4, cut short|lz4, no bytes|a length of 33 bits)",
        ".*",
        "INVALID_RECORD; Kafka returns UNKNOWN_SERVER_ERROR. Producers retry neither",
    ),
    Intended(
        "produce", ".*, lz4, bytes after the frame", ".*", "refused: readers other than Java's would not take them"
    ),
    Intended(
        "produce",
        "a batch and (a half|five bytes|garbage)",
        r".*\.(error_code|base_offset)",
        "INVALID_RECORD; Kafka drops what follows the first batch and answers success, or finds it corrupt",
    ),
    Intended(
        "produce",
        "(a good one, then no records|no records, then a good one), acks .*",
        r".*\.(error_code|base_offset)",
        "the last batch counts in every case; Kafka appends the whole one and answers for the other",
    ),
    Intended(
        "produce",
        "(gzip|uncompressed), codec ., log append time",
        r"kept\.inside.*",
        "under another codec the records keep their producer's times; Kafka writes the one time of the header into each",
    ),
    Intended(
        "produce",
        ".*, idempotent, again",
        "arrival",
        "a duplicate's answer is the first answer again: no append time in a topic with create times",
    ),
    Intended(
        "alter_configs", "min.cleanable.dirty.ratio=NaN", "", "not a number is no ratio; Kafka compares it and takes it"
    ),
    # ---- Fetch
    Intended(
        "fetch",
        "a batch and a half",
        r".*\.records",
        "Ottla sends whole batches; Kafka cuts the last one off and the client throws the piece away",
    ),
    Intended(
        "fetch",
        "no such (partition|topic)|no such partition, as a follower|a good and a bad partition|an unknown topic joins|"
        "an unknown (topic|partition) beside one that is here|nothing but an unknown topic|one (is|is still) gone|"
        "with a topic that never was|one never was",
        r".*\.aborted_transactions",
        "null with every error; Kafka's answer for a partition it does not know carries an empty list",
    ),
    Intended(
        "fetch",
        "an unknown topic joins",
        r"error_code|responses",
        "an unknown id in a session is UNKNOWN_TOPIC_ID of that partition; Kafka 4.1 fails the whole request with "
        "UNKNOWN_SERVER_ERROR",
        kafka=OLDEST,
    ),
    # ---- Other
    Intended(
        "end_txn",
        "commit after the timeout",
        "error_code",
        "KAFKA-20785: a commit that meets the abort of the coordinator is PRODUCER_FENCED, from which clients recover; "
        "Kafka 4.4 answers INVALID_TXN_STATE, which is fatal",
    ),
    Intended("describe_quorum", "the quorum", "error_code", "there is no Raft quorum: UNSUPPORTED_VERSION says so"),
    Intended("describe_producers", "no such partition", r".*\.error_message", "Ottla says in words what was wrong"),
    Intended("create_partitions", "no such topic", r".*\.error_message", "Ottla says in words what was wrong"),
    Intended("describe_configs", "no such topic", r".*\.error_message", "Ottla says in words what was wrong"),
    Intended(
        "incremental_alter_configs",
        "no such operation",
        r".*\.error_(code|message)",
        "INVALID_REQUEST; Kafka answers UNKNOWN_SERVER_ERROR",
    ),
    # ---- Settings
    Intended(
        "incremental_alter_configs",
        r"(controlled\.shutdown\.|leader\.imbalance\.per\.broker|password\.encoder\.|delegation\.token\.master\.key).*",
        r"\[[01]\]",
        "settings of earlier Kafkas, that Ottla has; 4.4 takes any text for them, as for every unknown name",
    ),
    Intended(
        "incremental_alter_configs",
        r"group\.(consumer|share)\.assignment\.interval\.ms=.*",
        r"\[[01]\]",
        "changing these needs a restart of Ottla; a group's own setting does not",
    ),
    Intended(
        "incremental_alter_configs",
        r"(num\.io\.threads|metric\.reporters|config\.providers)=.*",
        r"\[[01]\]",
        "a setting that Ottla does not have is refused, not stored unseen",
    ),
    Intended(
        "incremental_alter_configs",
        r"(super\.users|allow\.everyone\.if\.no\.acl\.found|org\.apache\.kafka\.sasl\.oauthbearer\.allowed\.urls)=.*",
        r"\[[01]\]",
        "no request may change who is above the ACLs, or where keys are read; Kafka stores the text unseen, as of every "
        "unknown name",
    ),
    Intended(
        "incremental_alter_configs",
        r"sasl\.(enabled\.mechanisms|jaas\.config|mechanism\.inter\.broker\.protocol)=.*",
        r"\[1\]",
        "how clients and brokers sign in is read at the start only",
    ),
    Intended(
        "incremental_alter_configs",
        r"ssl\.(cipher\.suites|client\.auth|enabled\.protocols|endpoint\.identification\.algorithm|protocol)=.*",
        r"\[1\]",
        "all settings of TLS are changed for one listener, by its prefix, and checked with its certificates; Kafka asks "
        "for the prefix with some, and takes any text for most of the others",
    ),
    Intended(
        "incremental_alter_configs",
        r"max\.connections\.per\.ip\.overrides='1:2.*",
        r"\[[01]\]",
        "addresses are written in full: Ottla looks no name up, and 1 is not taken for 0.0.0.1",
    ),
    Intended(
        "incremental_alter_configs",
        r"(log\.cleaner\.io\.(buffer\.load\.factor|max\.bytes\.per\.second)|log\.flush\.interval\.ms|log\.retention\.ms)=.*",
        r"\[[01]\]",
        "a share above 1, a rate of 0 or a negative period means nothing; Kafka takes it",
    ),
    Intended(
        "create_topics|describe_configs",
        ".*",
        r"(.*configs\.|log\.)?(errors\.deadletterqueue|max\.decompressed|remote\.copy\.lag)[a-z.]*",
        "settings that Apache Kafka added after 4.1",
        kafka=OLDEST,
    ),
    Intended(
        "create_topics|describe_configs",
        ".*",
        r".*configs\.(durability|ottla\.record\.validation)",
        "Ottla's own settings: when a record counts as written, and how much of a batch is validated",
    ),
    Intended(
        "create_topics|describe_configs",
        ".*",
        r".*configs\.min\.insync\.replicas(\.config_source|\.synonyms)?",
        "Kafka's storage tool writes this default into a new cluster's dynamic settings; in Ottla it stays a default",
    ),
    Intended(
        "share_group_heartbeat", "no member|a long member id", r".*error_message", "the error is also said in words"
    ),
    Intended(
        "share_fetch",
        "one was made again",
        r"partitions\[0\]\.error_code",
        "INCONSISTENT_TOPIC_ID, as in Fetch; Kafka answers UNKNOWN_SERVER_ERROR",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"[^A-Z]*\.config_type",
        "lists of listeners and directories are typed as the lists they are",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(max\.connections|queued\.max\.request\.bytes|socket\..*)\.value",
        CAUTIOUS,
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(listeners|listener\.security\.protocol\.map|num\.recovery\.threads\.per\.data\.dir|"
        r"sasl\.(enabled\.mechanisms|jaas\.config|mechanism\.inter\.broker\.protocol)|"
        r"ssl\.(keystore|truststore)\.location)\.read_only",
        "changing these needs a restart of Ottla; no request names a file",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(controller\.listener\.names|inter\.broker\.listener\.name|listener\.security\.protocol\.map|"
        r"offsets\.topic\.replication\.factor|transaction\.state\.log\.(min\.isr|replication\.factor))\.value",
        "one is started with another file than the other",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"durability|ottla\..*|(zookeeper|password\.encoder)\..*|delegation\.token\.master\.key|super\.users|"
        r"allow\.everyone\.if\.no\.acl\.found|org\.apache\.kafka\.sasl\.oauthbearer\.allowed\.urls|"
        r"log\.initial\.task\.delay\.ms|producer\.id\.expiration\.check\.interval\.ms",
        "settings of Ottla's own, those of Kafka 3, those that Kafka's authorizer and Java read, and two that Kafka keeps "
        "internal",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"sasl\.(enabled\.mechanisms|mechanism\.inter\.broker\.protocol)\.value",
        "SCRAM, where Kafka's default is Kerberos, which Ottla does not have",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(authorizer\.class\.name|max\.connections\.per\.ip\.overrides|sasl\.oauthbearer\.expected\.audience|"
        r"security\.inter\.broker\.protocol|ssl\.cipher\.suites)\.value",
        "what is not set is null, and the protocol between brokers follows from their listener",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(?!.*\.(value|read_only|is_sensitive|config_type)$)(principal|sasl|security|ssl)\..*",
        "Kerberos, sign-in by OAuth of the broker itself, and Java's classes, which Ottla does not have",
    ),
    Intended(
        "describe_configs",
        "all of the broker",
        r"(add\.partitions\.to\.txn\.retry\.backoff\.ms|alter|auto\.leader|background|broker\.(heartbeat|session)|client\.quota|config\.providers|"
        r"controlled|controller\.(quorum|quota|socket)|cordoned|create\.topic|delete\.records|early|fetch\.purg|follower|"
        r"group\.(consumer|coordinator|share|streams)|initial|kafka\.metrics|leader|log\.(cleaner|dir)|"
        r"max\.request\.partition|metadata|metric|num\.(io|network|replica)|offsets\.(load|topic\.compression)|"
        r"process|producer\.(id|purgatory)|queued\.max\.requests|remote|replica|request\.timeout|reserved|"
        r"server\.max|share|socket\.connection|transaction\.(partition|state\.log\.load|two)|unstable|unclean|broker)"
        r"[a-z0-9._]*",
        "settings of parts that Ottla has not (thread pools, KRaft, tiers), or not yet (share groups)",
    ),
)
