"""Declares the settings of TLS, SASL, the authorizer, quotas, the audit log, secrets and delegation tokens."""

from __future__ import annotations

from typing import Any, Final

from ottla.core.settings import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    Content,
    Section,
    Type,
    setting,
)


def _own(key: str, **more: Any) -> Any:
    """Declare a setting that each listener may have of its own (`listener.name.<name>.ssl...`)."""
    return setting(key, per_listener=True, **more)


TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class TlsConfig(Section):
    """Holds Kafka's settings `ssl.*` of listeners, and of connections to other brokers."""

    keystore_location: str = _own(
        "ssl.keystore.location", default="", kind=Type.STRING,
        doc="The file with the broker's certificate, the certificates of its issuers, and its key: PEM or PKCS#12.",
    )  # fmt: skip
    keystore_password: str = _own(
        "ssl.keystore.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of a PKCS#12 key store.",
    )  # fmt: skip
    keystore_type: str = _own(
        "ssl.keystore.type", default="JKS", kind=Type.STRING, choices=("JKS", "PKCS12", "PEM"), live=True,
        doc="The format of the key store. Java's own JKS is refused, with the command that converts it.",
        no_effect="it is recognized by its content",
    )  # fmt: skip
    keystore_chain: str = _own(
        "ssl.keystore.certificate.chain", default="", kind=Type.PASSWORD, live=True,
        doc="The broker's certificate and those of its issuers as PEM text, in place of a file.",
    )  # fmt: skip
    keystore_key: str = _own(
        "ssl.keystore.key", default="", kind=Type.PASSWORD, live=True,
        doc="The broker's key as PEM text (PKCS#8), for `ssl.keystore.certificate.chain`.",
    )  # fmt: skip
    key_password: str = _own(
        "ssl.key.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of an encrypted key.",
    )  # fmt: skip
    truststore_location: str = _own(
        "ssl.truststore.location", default="", kind=Type.STRING,
        doc="The file with the certificates that clients' and other brokers' certificates must be issued by: PEM or "
        "PKCS#12. Empty means those that this machine trusts.",
    )  # fmt: skip
    truststore_password: str = _own(
        "ssl.truststore.password", default="", kind=Type.PASSWORD, live=True,
        doc="The password of a PKCS#12 trust store.",
    )  # fmt: skip
    truststore_type: str = _own(
        "ssl.truststore.type", default="JKS", kind=Type.STRING, choices=("JKS", "PKCS12", "PEM"), live=True,
        doc="The format of the trust store.", no_effect="it is recognized by its content",
    )  # fmt: skip
    truststore_certificates: str = _own(
        "ssl.truststore.certificates", default="", kind=Type.PASSWORD, live=True,
        doc="The trusted certificates as PEM text, in place of a file.",
    )  # fmt: skip
    client_auth: str = _own(
        "ssl.client.auth", default="none", kind=Type.STRING, choices=("none", "requested", "required"), live=True,
        doc="Whether clients need a certificate: `required`, `requested` (one that is sent is checked) or `none`. The "
        "principal of a client is taken from its certificate.",
    )  # fmt: skip
    enabled_protocols: tuple[str, ...] = _own(
        "ssl.enabled.protocols", default=TLS_VERSIONS, kind=Type.LIST, choices=TLS_VERSIONS, live=True,
        doc="The versions of TLS. Older ones than 1.2 are not safe, and not served.",
    )  # fmt: skip
    protocol: str = _own(
        "ssl.protocol", default="TLSv1.3", kind=Type.STRING, choices=("TLS", *TLS_VERSIONS), live=True,
        doc="The version of Java's SSLContext.", no_effect="`ssl.enabled.protocols` decides",
    )  # fmt: skip
    cipher_suites: tuple[str, ...] = _own(
        "ssl.cipher.suites", default=(), kind=Type.LIST, live=True, content=Content.NAME,
        doc="The cipher suites, by their IANA names as in Kafka or by OpenSSL's. Empty means OpenSSL's choice. Those "
        "of TLS 1.3 are all served: Python cannot leave one out.",
    )  # fmt: skip
    endpoint_identification: str = _own(
        "ssl.endpoint.identification.algorithm", default="https", kind=Type.STRING, choices=("https", ""), live=True,
        doc="Whether this broker checks the host name in the certificates of other brokers: `https`, or empty for no.",
    )  # fmt: skip
    principal_mapping_rules: str = _own(
        "ssl.principal.mapping.rules", default="DEFAULT", kind=Type.STRING,
        doc="How the distinguished name of a certificate becomes the name of a principal: rules "
        "`RULE:pattern/replacement/[LU]` and `DEFAULT` (the whole name), of which the first that matches counts "
        "(KIP-371).",
    )  # fmt: skip
    expiry_warning_days: int = _own(
        "ottla.ssl.expiry.warning.days", default=30, kind=Type.INT, unit="days", at_least=0, live=True,
        doc="A certificate that expires within so many days is logged at the start and once a day. 0 disables it.",
    )  # fmt: skip


PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN, OAUTHBEARER)
"""All that are served. Kerberos (GSSAPI) is not."""

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


def split_mechanism_key(key: str) -> tuple[str, str]:
    """Return the mechanism that a setting is for, and the setting's own name; no mechanism is empty.

    >>> split_mechanism_key("scram-sha-256.sasl.jaas.config"), split_mechanism_key("sasl.jaas.config")
    (('SCRAM-SHA-256', 'sasl.jaas.config'), ('', 'sasl.jaas.config'))
    """
    for mechanism in MECHANISMS:
        if key.startswith(f"{mechanism.lower()}."):
            return mechanism, key[len(mechanism) + 1 :]
    return "", key


class SaslConfig(Section):
    """Holds Kafka's settings `sasl.*` of listeners, and of connections to other brokers."""

    enabled_mechanisms: tuple[str, ...] = _own(
        "sasl.enabled.mechanisms", default=(SCRAM_SHA_512, SCRAM_SHA_256), kind=Type.LIST, choices=MECHANISMS,
        doc="The mechanisms by which clients sign in on listeners with SASL.",
    )  # fmt: skip
    jaas_config: str = _own(
        "sasl.jaas.config", default="", kind=Type.PASSWORD, per_mechanism=True,
        doc='The login module with its options, as in Kafka: for PLAIN the users, `user_NAME="password"`; for '
        "connections to other brokers `username` and `password`. It is parsed as text: no class is loaded. "
        "`listener.name.<name>.<mechanism>.sasl.jaas.config` is that of one listener and mechanism.",
    )  # fmt: skip
    session_ms_max: int = _own(
        "connections.max.reauth.ms", default=0, kind=Type.LONG, unit="milliseconds", at_least=0, at_most=LONG_MAX,
        per_mechanism=True,
        doc="After this time a client must sign in again, on the same connection, or the connection is closed. 0 means "
        "that a session ends with its token only.",
    )  # fmt: skip
    failure_delay_ms: int = _own(
        "connection.failed.authentication.delay.ms", default=100, kind=Type.INT, unit="milliseconds", at_least=0,
        at_most=60 * SECOND_MS,
        doc="A failed sign-in is answered after this time, and the connection closed.",
    )  # fmt: skip
    inter_broker_mechanism: str = setting(
        "sasl.mechanism.inter.broker.protocol", default=SCRAM_SHA_512, kind=Type.STRING, choices=MECHANISMS,
        doc="The mechanism by which brokers sign in to each other.",
    )  # fmt: skip
    initial_users_file: str = setting(
        "ottla.initial.users.file", default="", kind=Type.STRING,
        doc="A file of lines NAME=PASSWORD. At the start each user that has no SCRAM credential gets one of each "
        "enabled SCRAM mechanism; the file may be removed then. `ottla server --init-user` does so for one user.",
    )  # fmt: skip
    jwks_url: str = _own(
        "sasl.oauthbearer.jwks.endpoint.url", default="", kind=Type.STRING,
        doc=f"Where the keys are that sign the tokens of {OAUTHBEARER}: an https URL, or a file (`file:///...`), of a "
        "JSON Web Key Set. Without it the mechanism is not served.",
    )  # fmt: skip
    jwks_refresh_ms: int = _own(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", default=HOUR_MS, kind=Type.LONG, unit="milliseconds",
        at_least=SECOND_MS,
        doc="Interval at which these keys are read again. A token with an unknown key has them read at once.",
    )  # fmt: skip
    jwks_retry_ms: int = _own(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", default=100, kind=Type.LONG, unit="milliseconds",
        at_least=1, doc="Pause before the keys are read again after an error; it doubles with each error.",
    )  # fmt: skip
    jwks_retry_ms_max: int = _own(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", default=10 * SECOND_MS, kind=Type.LONG,
        unit="milliseconds", at_least=1, doc="Maximum of that pause.",
    )  # fmt: skip
    allowed_urls: tuple[str, ...] = setting(
        ALLOWED_URLS, default=(), kind=Type.LIST,
        doc="The URLs from which keys may be read: a system property of Kafka's. Empty means those that the settings "
        "of this broker name, because no request can change them.",
    )  # fmt: skip
    expected_audience: tuple[str, ...] = _own(
        "sasl.oauthbearer.expected.audience", default=(), kind=Type.LIST,
        doc="A token must be for one of these audiences (claim `aud`).",
    )  # fmt: skip
    expected_issuer: str = _own(
        "sasl.oauthbearer.expected.issuer", default="", kind=Type.STRING,
        doc="A token must be of this issuer (claim `iss`).",
    )  # fmt: skip
    allow_unverified_audience: bool = _own(
        "sasl.oauthbearer.allow.unverified.audience", default=False, kind=Type.BOOLEAN,
        doc="Whether tokens for any audience are taken where no audience is expected. Otherwise one is required.",
    )  # fmt: skip
    allow_unverified_issuer: bool = _own(
        "sasl.oauthbearer.allow.unverified.issuer", default=False, kind=Type.BOOLEAN,
        doc="Whether tokens of any issuer are taken where no issuer is expected. Otherwise one is required.",
    )  # fmt: skip
    clock_skew_seconds: int = _own(
        "sasl.oauthbearer.clock.skew.seconds", default=30, kind=Type.INT, unit="seconds", at_least=0,
        at_most=3600, doc="By how much the clocks of this machine and of the issuer may differ.",
    )  # fmt: skip
    subject_claim: str = _own(
        "sasl.oauthbearer.sub.claim.name", default="sub", kind=Type.STRING,
        doc="The claim of a token that names the user.",
    )  # fmt: skip
    scope_claim: str = _own(
        "sasl.oauthbearer.scope.claim.name", default="scope", kind=Type.STRING,
        doc="The claim of a token that lists its scopes; it is checked to be text or a list of texts.",
    )  # fmt: skip
    groups_claim: str = _own(
        "ottla.sasl.oauthbearer.groups.claim.name", default="", kind=Type.STRING,
        doc="The claim of a token that lists the groups of the user, for access rules of `Group:NAME`. Empty means "
        "none.",
    )  # fmt: skip


AUTHORIZERS: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Kafka's authorizers, with KRaft and with ZooKeeper: they decide the same, and Ottla's decides as they do."""


class AuthorizerConfig(Section):
    """Holds whether there is access control, and who is above it."""

    class_name: str = setting(
        "authorizer.class.name", default="", kind=Type.STRING,
        doc="Access control by ACLs: `org.apache.kafka.metadata.authorizer.StandardAuthorizer`, or Kafka's older name "
            "for it, `kafka.security.authorizer.AclAuthorizer`. Empty means that every client may do everything.",
    )  # fmt: skip
    super_users: str = setting(
        "super.users", default="", kind=Type.STRING,
        doc="The principals that may do everything whatever the ACLs say, separated by semicolons: "
            "`User:admin;User:broker`.",
    )  # fmt: skip
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", default=False, kind=Type.BOOLEAN,
        doc="Whether everyone may do everything with a resource that no ACL is about.",
    )  # fmt: skip
    metadata_age_ms_max: int = setting(
        "ottla.security.metadata.max.age.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="A broker to which the metadata store has confirmed nothing for so long disconnects all clients but super "
            "users, and lets no client sign in by SCRAM: ACLs and credentials may have changed meanwhile. -1 means "
            "never, as in Kafka.",
    )  # fmt: skip

    @property
    def is_on(self) -> bool:
        """Return whether there is access control."""
        return bool(self.class_name.strip())

    @property
    def super_user_principals(self) -> frozenset[str]:
        """Return the principals that may do everything."""
        return frozenset(filter(None, map(str.strip, self.super_users.split(";"))))


def why_not_authorized(config: AuthorizerConfig) -> tuple[str, str] | None:
    """Return the setting with which there can be no access control, and why; None if all are right.

    A principal without a type would match no client, and a class that is not known would decide otherwise.
    """
    name = config.class_name.strip()
    if name and name not in AUTHORIZERS:
        return "authorizer.class.name", f"there is no authorizer {name}; Ottla's own is {AUTHORIZERS[0]}"
    for principal in sorted(config.super_user_principals):
        if ":" not in principal:
            return "super.users", f"{principal} is no principal; write User:{principal}"
    return None


class QuotaConfig(Section):
    """Holds the windows that rates are measured over."""

    window_num: int = setting(
        "quota.window.num", default=11, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of windows that the rates of clients are measured over, the present one among them.",
    )  # fmt: skip
    window_seconds: int = setting(
        "quota.window.size.seconds", default=1, kind=Type.INT, unit="seconds", at_least=1, at_most=INT_MAX // 1000,
        doc="Length of such a window. No quota of request time, and no rate of connections, lets a client wait longer "
        "at a time.",
    )  # fmt: skip
    controller_window_num: int = setting(
        "controller.quota.window.num", default=11, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of windows whose controller mutations a client may make at once (KIP-599).",
    )  # fmt: skip
    controller_window_seconds: int = setting(
        "controller.quota.window.size.seconds", default=1, kind=Type.INT, unit="seconds", at_least=1,
        at_most=INT_MAX // 1000, doc="Length of such a window.",
    )  # fmt: skip


class AuditConfig(Section):
    """Holds where entries go, and their limits. None may be changed by a request: who is watched must not decide."""

    path: str = setting(
        "ottla.audit.log.path", default="", kind=Type.STRING,
        doc="File of the security audit log: who signed in, what was refused, and every administrative change, as "
        "lines of JSON (docs/audit-log.md). Empty means none.",
    )  # fmt: skip
    file_bytes_max: int = setting(
        "ottla.audit.log.max.bytes", default=64 * MIB, kind=Type.LONG, unit="bytes", at_least=1 << 16,
        doc="Size at which the file of the audit log is renamed to FILE.1, FILE.1 to FILE.2, and so on.",
    )  # fmt: skip
    files_max: int = setting(
        "ottla.audit.log.max.files", default=8, kind=Type.INT, at_least=1, at_most=1000,
        doc="Number of files of the audit log that are kept, the current one included.",
    )  # fmt: skip
    topic_enable: bool = setting(
        "ottla.audit.topic.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether the security audit log is written to the topic `__ottla_audit` too. Clients cannot write to it.",
    )  # fmt: skip
    topic_partitions: int = setting(
        "ottla.audit.topic.num.partitions", default=12, kind=Type.INT, at_least=1,
        doc="Number of partitions of `__ottla_audit`. Each broker writes to one that it leads: there should be several "
        "for each broker.",
    )  # fmt: skip
    topic_replication_factor: int = setting(
        "ottla.audit.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Number of replicas of `__ottla_audit`. A broker alone has one.",
    )  # fmt: skip
    topic_retention_ms: int = setting(
        "ottla.audit.topic.retention.ms", default=7 * DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="How long entries stay in `__ottla_audit`, as it is created; -1 is for ever.",
    )  # fmt: skip
    logs_allowed: bool = setting(
        "ottla.audit.allowed.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether operations that were allowed are in the audit log too: an entry for each resource of each "
        "request.",
    )  # fmt: skip
    entries_max: int = setting(
        "ottla.audit.queue.max.entries", default=10_000, kind=Type.INT, at_least=100, at_most=1_000_000,
        doc="Number of entries that wait to be written, for each output. More are dropped, and their number is "
        "written.",
    )  # fmt: skip

    @property
    def is_on(self) -> bool:
        """Return whether there is an audit log."""
        return bool(self.path) or self.topic_enable


ITERATIONS_MIN: Final = 100_000
ITERATIONS_MAX: Final = 10_000_000


class SecretConfig(Section):
    """Holds the secret of the password encoder, and its parameters."""

    secret: str = setting(
        "password.encoder.secret", default="", kind=Type.PASSWORD,
        doc="Encrypts secret settings of this broker that AlterConfigs sets, in the metadata store. Without it they "
        "are refused.",
    )  # fmt: skip
    old_secret: str = setting(
        "password.encoder.old.secret", default="", kind=Type.PASSWORD,
        doc="The secret before `password.encoder.secret` was changed: at the start what it had encrypted is encrypted "
        "again.",
    )  # fmt: skip
    iterations: int = setting(
        "password.encoder.iterations", default=120_000, kind=Type.INT, at_least=ITERATIONS_MIN, at_most=ITERATIONS_MAX,
        doc="Iterations of PBKDF2. Kafka's default of 4,096 is too few today; values with it are still read.",
    )  # fmt: skip
    key_factory: str = setting(
        "password.encoder.keyfactory.algorithm", default="PBKDF2WithHmacSHA512", kind=Type.STRING,
        choices=("PBKDF2WithHmacSHA256", "PBKDF2WithHmacSHA512"),
        doc="How the key is derived from `password.encoder.secret`.",
    )  # fmt: skip
    cipher: str = setting(
        "password.encoder.cipher.algorithm", default="AES/GCM/NoPadding", kind=Type.STRING,
        choices=("AES/GCM/NoPadding",), no_effect="there is one cipher",
        doc="The cipher. Values that Kafka encrypted with `AES/CBC/PKCS5Padding` are still read.",
    )  # fmt: skip
    key_bits: str = setting(
        "password.encoder.key.length", default="256", kind=Type.STRING, choices=("128", "192", "256"),
        doc="Length of the key in bits.",
    )  # fmt: skip


class TokenConfig(Section):
    """Holds the key of delegation tokens, and how long they are valid. All brokers have the same values."""

    secret_key: str = setting(
        "delegation.token.secret.key", default="", kind=Type.PASSWORD, synonyms=("delegation.token.master.key",),
        doc="The key from which the secret of each delegation token is derived, the same on all brokers. Without it "
        "there are no delegation tokens. With another one all tokens are invalid.",
    )  # fmt: skip
    max_lifetime_ms: int = setting(
        "delegation.token.max.lifetime.ms", default=7 * DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="How long a delegation token is valid at most, however often it is renewed.",
    )  # fmt: skip
    expiry_time_ms: int = setting(
        "delegation.token.expiry.time.ms", default=DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="How long a delegation token is valid before it has to be renewed.",
    )  # fmt: skip
    expiry_check_interval_ms: int = setting(
        "delegation.token.expiry.check.interval.ms", default=HOUR_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="Interval at which expired tokens are removed. They are not accepted any more before that.",
    )  # fmt: skip
