"""The options of a source and a sink."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from ottla.client.password_source import PasswordKind, PasswordSource
from ottla.client.profiles import NamedCluster, Profiles
from ottla.client.sasl import Sasl
from ottla.core.ids import TopicPartition
from ottla.pipeline.connector import spark_api
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.datasource import wanted_columns
from ottla.pipeline.connector.options import InvalidOption, SourceOptions, source_options
from ottla.pipeline.connector.reader import StreamReader
from ottla.pipeline.connector.record_rows import row_reader
from ottla.pipeline.connector.sink_options import sink_options
from ottla.pipeline.connector.starting_offsets import AtOffsets, AtTime, Earliest, Latest

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
BASE = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def read(streaming: bool = False, **more: str) -> SourceOptions:
    return source_options({**BASE, **{k.replace("__", "."): v for k, v in more.items()}}, streaming=streaming)


def test_defaults_are_those_of_sparks_own_connector() -> None:
    batch, stream = read(), read(streaming=True)
    assert (batch.starting, batch.ending, stream.starting) == (Earliest(), Latest(), Latest())
    assert batch.read_options.fail_on_data_loss
    assert not batch.read_options.read_committed
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert [str(address) for address in batch.read_options.connection.brokers] == ["a:1", "b:2"]


def test_names_are_compared_without_regard_to_case_and_values_are_read() -> None:
    options = read(
        streaming=True,
        MAXOFFSETSPERTRIGGER="10",
        minoffsetspertrigger="5",
        maxTriggerDelay="2m",
        FailOnDataLoss="FALSE",
        includeHeaders="true",
        kafka__isolation__level="read_committed",
        kafka__fetch__max__bytes="1000",
        kafkaConsumer__pollTimeoutMs="1500",
        kafka__request__timeout__ms="2500",
        lagGroup="g",
    )
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (10, 5)
    assert options.max_trigger_delay_s == 120
    assert not options.read_options.fail_on_data_loss
    assert options.read_options.read_committed
    assert options.read_options.fetch_bytes == 1000
    assert options.read_options.connection.client.retry_s == 1.5
    assert options.read_options.connection.client.request_timeout_s == 2.5
    assert options.lag_group == "g"
    assert options.columns[-1] == "headers"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("100ms", 0.1),
        ("15", 0.015),
        ("2 hours", 7200),
        ("1d", 86400),
        ("3 minutes", 180),
        ("250 milliseconds", 0.25),
    ],
)
def test_lengths_of_time_are_written_as_spark_writes_them(text: str, seconds: float) -> None:
    assert read(streaming=True, maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_the_precedence_of_starting_options_is_sparks() -> None:
    offsets, by_time = '{"t": {"0": 5, "1": -2}}', '{"t": {"0": 1000, "1": 2000}}'
    tp = TopicPartition("t", 0)
    options = read(startingOffsets=offsets)
    assert isinstance(options.starting, AtOffsets)
    assert options.starting.offsets[tp] == 5
    options = read(startingOffsets=offsets, startingOffsetsByTimestamp=by_time)
    assert isinstance(options.starting, AtTime)
    assert options.starting.times_ms[tp] == 1000
    options = read(startingOffsets=offsets, startingOffsetsByTimestamp=by_time, startingTimestamp="7")
    assert isinstance(options.starting, AtTime)
    assert (options.starting.time_ms, options.starting.or_latest) == (7, False)
    assert isinstance(read(endingTimestamp="9").ending, AtTime)


@pytest.mark.parametrize(
    ("streaming", "options", "why"),
    [
        (False, {"subscribes": "t"}, "^subscribes: no such option"),
        (False, {"startingOffset": "x"}, "^startingoffset: no such option; did you mean startingOffsets\\?"),
        (
            False,
            {"maxOffsetPerTriger": "x"},
            "^maxoffsetpertriger: no such option; did you mean maxOffsetsPerTrigger\\?",
        ),
        (False, {"size": "x"}, "^size: no such option; these are known: assign, brokerWait"),
        (False, {"isolation.level": "read_committed"}, "^isolation.level: no such option"),
        (False, {"level": "x"}, "^level: no such option; did you mean kafka.isolation.level"),
        (False, {"subscribePattern": "t.*"}, "^subscribePattern: subscribe is given too"),
        (False, {"kafka.security.protocol": "TLS"}, "^kafka.security.protocol: 'TLS' is not one of"),
        (False, {"kafka.ssl.ca.location": "x"}, "^kafka.ssl.ca.location: it has no effect"),
        (False, {"kafka.nonsense": "x"}, "^kafka.nonsense: no such setting"),
        (False, {"kafka.auto.offset.reset": "x"}, "^kafka.auto.offset.reset: use startingOffsets"),
        (False, {"kafka.isolation.level": "x"}, "^kafka.isolation.level: 'x' is neither"),
        (False, {"startingOffsets": "latest"}, "^startingOffsets: a batch that began"),
        (False, {"startingOffsets": '{"t": {"0": -1}}'}, "^startingOffsets: a batch that began"),
        (False, {"startingOffsets": '{"t": {"0": -3}}'}, "^startingOffsets: offsets are numbers"),
        (False, {"startingOffsets": "first"}, "^startingOffsets: 'first' is neither"),
        (False, {"startingOffsets": '{"t": [1]}'}, "^startingOffsets: write"),
        (False, {"startingOffsets": "{"}, "^startingOffsets: '{' is no JSON"),
        (False, {"endingOffsets": "earliest"}, "^endingOffsets: a batch that ended"),
        (True, {"endingOffsets": "latest"}, "^endingOffsets: a stream has no end"),
        (True, {"endingTimestamp": "1"}, "^endingTimestamp: a stream has no end"),
        (False, {"startingTimestamp": "noon"}, "^startingTimestamp: 'noon' is no number"),
        (False, {"startingOffsetsByTimestampStrategy": "first"}, "^startingOffsetsByTimestampStrategy: 'first'"),
        (True, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "^minOffsetsPerTrigger: 9 is more than"),
        (True, {"maxTriggerDelay": "soon"}, "^maxTriggerDelay: 'soon' is not a duration"),
        (False, {"failOnDataLoss": "perhaps"}, "^failOnDataLoss: 'perhaps' is neither true nor false"),
        (False, {"minPartitions": "0"}, "^minPartitions: '0' is no whole number from 1"),
        (False, {"columns": "offset,offset"}, "^columns: 'offset,offset' is no list"),
        (False, {"deduplicate": "true"}, "^deduplicate: no such option"),
    ],
)
def test_an_invalid_option_of_a_source_is_named(streaming: bool, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        source_options({**BASE, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "^kafka.bootstrap.servers: say which"),
        ({"kafka.bootstrap.servers": "a:b:c"}, "^kafka.bootstrap.servers: 'a:b:c'"),
        ({"kafka.bootstrap.servers": "a"}, "^subscribe: say what to read"),
        ({"kafka.bootstrap.servers": "a", "subscribe": " , "}, "^subscribe: it names no topic"),
        ({"kafka.bootstrap.servers": "a", "subscribePattern": "("}, "^subscribePattern: '\\(' is no regular"),
        ({"kafka.bootstrap.servers": "a", "assign": '{"t": 1}'}, "^assign: write"),
        ({"kafka.bootstrap.servers": "a", "assign": "{}"}, "^assign: it names no partition"),
    ],
)
def test_a_missing_option_of_a_source_is_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        source_options(options, streaming=False)


def test_brokers_settings_and_password_come_from_a_profile_that_options_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    profiles = Profiles.load(os.environ)
    source = PasswordSource(PasswordKind.COMMAND, "echo secret")
    profiles.clusters["production"] = NamedCluster("c:1,d:2", settings, source)
    profiles.save()
    for connection in (
        source_options({"PROFILE": "production", "subscribe": "t"}, streaming=True).read_options.connection,
        sink_options({"profile": "production", "topic": "t"}).connection,
    ):
        assert [str(address) for address in connection.brokers] == ["c:1", "d:2"]
        assert connection.client.security.sasl == Sasl("PLAIN", "alice", "secret")
    connection = read(profile="production", kafka__sasl__username="bob").read_options.connection
    assert [str(address) for address in connection.brokers] == ["a:1", "b:2"]
    assert connection.client.security.sasl == Sasl("PLAIN", "bob", "secret")
    with pytest.raises(InvalidOption, match=r"^kafka\.ottla.*: only a profile names a command"):
        read(kafka__ottla__sasl__oauthbearer__token__command="touch /tmp/x")
    with pytest.raises(InvalidOption, match=r"^profile: there is no profile"):
        read(profile="other")


def test_options_without_effect_are_accepted() -> None:
    idle = {"kafka.group.id": "g", "groupIdPrefix": "p", "kafka.session.timeout.ms": "1", "fetchOffset.numRetries": "3"}
    assert source_options({**BASE, **idle}, streaming=True) == source_options(BASE, streaming=True)


SINK = {"kafka.bootstrap.servers": "a", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"subscribe": "t"}, "^subscribe: no such option"),
        ({"kafka.acks": "1"}, "^kafka.acks: without all"),
        ({"kafka.acks": "0", "deduplicate": "false"}, "^kafka.acks: '0' is neither"),
        ({"kafka.enable.idempotence": "false"}, "^kafka.enable.idempotence: this sink always is"),
        ({"kafka.compression.type": "rar"}, "^kafka.compression.type: there is no codec 'rar'"),
        ({"kafka.transactional.id": "x"}, "^kafka.transactional.id: the sink is exactly once"),
        ({"onReplayMismatch": "ignore"}, "^onReplayMismatch: 'ignore' is neither"),
        ({"topic": ""}, "^topic: it is empty"),
    ],
)
def test_an_invalid_option_of_a_sink_is_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        sink_options({**SINK, **options})


def test_a_sink_takes_the_options_of_kafkas_producers() -> None:
    given = {
        "kafka.compression.type": "zstd",
        "kafka.batch.size": "1000",
        "kafka.delivery.timeout.ms": "5000",
        "kafka.linger.ms": "5",
    }
    options = sink_options({**SINK, **given, "checkpointLocation": "/x"})
    assert (options.codec, options.batch_bytes, options.delivery_timeout_s, options.acks) == (4, 1000, 5.0, -1)
    assert sink_options({**SINK, "kafka.acks": "1", "deduplicate": "false"}).acks == 1


def test_a_data_frame_must_have_what_a_record_needs() -> None:
    value = StructType().add("value", BinaryType())
    assert row_reader(value, "t").columns == ("value",)
    more = (
        StructType()
        .add("value", StringType())
        .add("partition", LongType())
        .add("timestamp", TimestampType())
        .add("offset", LongType())
    )
    assert row_reader(more, "t").columns == ("value", "partition", "timestamp")
    for schema, topic, why in (
        (StructType().add("key", BinaryType()), "t", "^value: the sink needs"),
        (value, None, "^topic: give the option"),
        (StructType().add("value", IntegerType()), "t", "^value: the column is int"),
        (StructType().add("value", BinaryType()).add("headers", StringType()), "t", "^headers: the column is string"),
    ):
        with pytest.raises(InvalidOption, match=why):
            row_reader(schema, topic)


def test_a_readers_own_schema_must_be_made_of_the_columns_there_are() -> None:
    assert wanted_columns(StructType().add("offset", LongType()).add("value", BinaryType())) == ("offset", "value")
    for schema, why in (
        (StructType().add("size", LongType()), "no column 'size'"),
        (StructType().add("value", StringType()), "value is binary, not string"),
        (StructType(), "no columns"),
    ):
        with pytest.raises(InvalidOption, match=why):
            wanted_columns(schema)


@pytest.mark.skipif(VERSION < (4, 2), reason="PySpark before 4.2 has no read limits")
def test_options_become_sparks_read_limits() -> None:
    from pyspark.sql.streaming import datasource as limits  # type: ignore[attr-defined, unused-ignore]

    def limit(**options: str) -> object:
        return StreamReader(read(streaming=True, **options), tuple(COLUMNS)).getDefaultReadLimit()

    assert limit() == limits.ReadAllAvailable()
    assert limit(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="3") == limits.ReadMaxRows(5)
    assert limit(minOffsetsPerTrigger="3") == limits.ReadMinRows(3)
    assert spark_api.ignores_options(limits.ReadAllAvailable())
    assert not spark_api.ignores_options(limits.ReadMaxRows(5))


@pytest.mark.oldest_spark
@pytest.mark.parametrize(("missing", "found"), [("pyarrow", False), ("nothing_of_ours", True)])
def test_spark_finds_other_sources_without_the_pipelines_libraries(missing: str, found: bool) -> None:
    import subprocess
    import sys

    program = f"import sys; sys.modules[{missing!r}] = None; import pyspark_ottla; print(hasattr(pyspark_ottla, 'DefaultSource'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == str(found)
