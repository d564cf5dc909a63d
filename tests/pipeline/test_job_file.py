"""Job files: every mistake with its line, and what a right one means."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.offset_spec import OffsetKind
from ottla.client.sasl import Sasl
from ottla.pipeline.changes.rule import ChangeRule
from ottla.pipeline.event_time import Granularity, TimeFrom
from ottla.pipeline.formats.csv_lines import CsvLines
from ottla.pipeline.job_file.job import SECTIONS, PipelineJob, add_options, job_from, read_job
from ottla.pipeline.job_file.key_lines import lines_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.stages.runner import STAGES
from tests.support.examples import examples
from tests.support.lakes import directory_of

HERE = Path("/job")
EXAMPLE = files("ottla.pipeline.job_file") / "example.toml"
RIGHT = """\
[brokers]
bootstrap = "a:1,b:2"
[brokers.settings]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "me"
"sasl.password" = "secret"
[lake]
path = "lake"
format = "iceberg"
[spark]
master = "local[2]"
[schedule]
every = "30s"
[[load]]
topics = ["orders"]
table = "sales"
format = "csv"
start = "-1h"
on_loss = "skip"
file_size = "64MiB"
[load.time]
from = "field"
field = "at"
granularity = "hour"
lateness = "1h"
[load.columns]
n = "int"
[load.csv]
fields = ["at", "n"]
delimiter = ";"
[[load]]
pattern = "web-.*"
[compact]
keep = "2d"
"""


def faults(text: str) -> list[str]:
    _, found = read_job(text, directory=HERE, now_ms=10_000_000)
    return [fault.shown("job.toml") for fault in found.faults]


def job(text: str) -> PipelineJob:
    made, found = read_job(text, directory=HERE, now_ms=10_000_000)
    assert made is not None, found.faults
    return made


def test_a_valid_file_is_read_into_a_job() -> None:
    made = job(RIGHT)
    assert made.brokers.bootstrap == "a:1,b:2"
    assert made.brokers.read_committed
    assert made.brokers.client.security.protocol == "SASL_SSL"
    assert (directory_of(made.lake), made.lake.table_format) == (HERE / "lake", TableFormat.ICEBERG)
    assert (made.master, made.every_ms, made.keep_ms) == ("local[2]", 30_000, 2 * 86_400_000)
    sales, web = made.loads
    assert (sales.topics, sales.table, sales.on_loss, sales.file_bytes) == (("orders",), "sales", OnLoss.SKIP, 64 << 20)
    assert sales.start is not None
    assert (sales.start.kind, sales.start.number) == (OffsetKind.TIMESTAMP_MS, 10_000_000 - 3_600_000)
    time = sales.mapping.time
    assert (time.source, time.field, time.granularity, time.lateness_ms) == (
        TimeFrom.FIELD,
        "at",
        Granularity.HOUR,
        3_600_000,
    )
    assert sales.mapping.columns == {"n": "int"}
    assert sales.mapping.value == CsvLines(("at", "n"), ";")
    assert (web.pattern, web.table, web.topics) == ("web-.*", "{topic}", ())


def test_the_example_is_valid_and_contains_every_key() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert faults(text) == []
    for section in SECTIONS:
        assert f"[{section.name}]" in text
        for key in section.keys:
            assert f"{key.name} = " in text


def test_each_commented_line_of_the_example_is_valid() -> None:
    """A key that the example shows commented out must be one."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    for n, line in enumerate(lines):
        if line.startswith("#") and not line.startswith(("# ", "#[")) and " = " in line:
            live = [*lines[:n], line[1:], *lines[n + 1 :]]
            section = next(s for s in reversed(lines[:n]) if s.lstrip("#").startswith("["))
            live[lines.index(section)] = section.lstrip("#")
            found = [fault for fault in faults("\n".join(live)) if "has no key" in fault or " must be " in fault]
            assert found == [], line


MINIMAL = '[lake]\npath = "lake"\n'
UPSERT = "[[load]]\ntopics=['a']\nmode='upsert'\n"


def test_a_load_that_changes_rows_keeps_its_key_and_is_partitioned_by_it() -> None:
    made = job(MINIMAL + UPSERT + "buckets = 4\n[[load]]\ntopics = ['b']\nmode = 'history'\nkey_fields = ['id']\n")
    by_key, by_field = (load.mapping for load in made.loads)
    assert (by_key.changes, by_key.keep, by_key.partition_by) == (ChangeRule(buckets=4), ("key",), ("key_bucket",))
    assert by_field.changes == ChangeRule(history=True, key_fields=("id",))
    assert (by_field.keep, by_field.partition_by) == ((), ("is_current", "key_bucket"))
    assert job(MINIMAL + "[[load]]\ntopics = ['a']\n").loads[0].mapping.changes is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[lake]\npath = 'x'\nformat = ", "job.toml:3: this is not TOML"),
        ("", "job.toml:1: [lake] needs path"),
        (MINIMAL + "[laod]\n", "job.toml:3: there is no section [laod]; is load meant?"),
        (MINIMAL + "formt = 'delta'\n", "job.toml:3: [lake] has no key 'formt'; is format meant?"),
        (MINIMAL + "format = 'delat'\n", "job.toml:3: format is one of delta, iceberg, not 'delat'; is delta meant?"),
        ("[lake]\npath = 7\n", "job.toml:2: path must be a path or a URL, not 7"),
        (MINIMAL + "[load]\ntopics = ['a']\n", "job.toml:3: there may be several of these: write [[load]]"),
        (MINIMAL + "[[load]]\n", "job.toml:3: say either topics or pattern"),
        (MINIMAL + "[[load]]\ntopics=['a']\npattern='b'\n", "job.toml:4: say either topics or pattern"),
        (MINIMAL + "[[load]]\ntopics=['a.*']\n", "job.toml:4: 'a.*' is no topic's name; is pattern = 'a.*' meant?"),
        (MINIMAL + "[[load]]\npattern='('\n", "job.toml:4: '(' is no regular expression"),
        (MINIMAL + "[[load]]\ntopics=['a']\nmode='upserts'\n", "job.toml:5: mode is one of append, upsert, history"),
        (
            MINIMAL + "[[load]]\ntopics=['a']\nkey_fields=['id']\n",
            'job.toml:5: key_fields says how rows change: write mode = "upsert"',
        ),
        (MINIMAL + "[[load]]\ntopics=['a']\nbuckets=4\n", "job.toml:5: buckets says how rows change"),
        (MINIMAL + UPSERT + "buckets=0\n", "job.toml:6: buckets is a number from 1 to 1024"),
        (MINIMAL + UPSERT + "key_fields=['a', 'a']\n", "job.toml:6: key_fields has a name twice"),
        (MINIMAL + UPSERT + "key_fields=['offset']\n", "job.toml:6: offset is a column of every such table"),
        (
            MINIMAL + UPSERT + "format='raw'\nkey_fields=['id']\n",
            "job.toml:7: the format raw has no fields that are a key",
        ),
        (
            MINIMAL + UPSERT + "format='raw'\nenvelope='debezium'\n",
            "job.toml:7: Debezium's envelopes are understood in JSON",
        ),
        (
            MINIMAL + UPSERT + "[load.time]\ngranularity='hour'\n",
            "job.toml:6: a table of mode upsert is partitioned by its keys",
        ),
        (
            MINIMAL + "[[load]]\nmode='history'\ntopics=['a', 'b']\ntable='c'\n",
            "job.toml:6: a load of mode history needs a table for each topic",
        ),
        (
            MINIMAL + UPSERT + "[[stream]]\nname='s'\nfrom='a'\nwindow='1m'\nvalues={n='count'}\n",
            "job.toml:8: rows of 'a' change, and a stream reads new rows of a table",
        ),
        (MINIMAL + "[[load]]\ntopics=['a']\nformat='csv'\n", "job.toml:3: a csv load needs csv.fields"),
        (
            MINIMAL + "[[load]]\ntopics=['a']\n[load.csv]\nheader=true\n",
            "job.toml:5: csv says something, and the format",
        ),
        (MINIMAL + "[[load]]\ntopics=['a']\nformat='avro'\n", "job.toml:3: an avro load needs"),
        (
            MINIMAL + "[[load]]\ntopics=['a']\nformat='avro'\navro.schema='none.avsc'\n",
            "job.toml:3: [Errno 2] No such file or directory",
        ),
        (MINIMAL + "[[load]]\ntopics=['a']\n[load.time]\nfrom='field'\n", "job.toml:5: time.from is a field"),
        (MINIMAL + "[[load]]\ntopics=['a']\n[load.time]\nfield='a'\n", "job.toml:5: time.field says where the time is"),
        (
            MINIMAL + "[[load]]\ntopics=['a']\ntime.from='pattern'\ntime.pattern='x'\n",
            "job.toml:5: time.pattern: the pattern needs a group named time",
        ),
        (
            MINIMAL + "[[load]]\ntopics=['a']\ntime={from='pattern', pattern='(?P<time>x)(?=y)'}\n",
            "job.toml:5: time.pattern: '(?P<time>x)(?=y)' is no regular expression of RE2",
        ),
        (MINIMAL + "[[load]]\ntopics=['a']\ntime.from='format'\n", "job.toml:5: the format json says nothing of"),
        (MINIMAL + "[[load]]\ntopics=['a']\ntime.form='%d %f'\n", "job.toml:5: time.form: no %f"),
        (MINIMAL + "[[load]]\ntopics=['a']\ncolumns.n='integer'\n", "job.toml:5: columns: n is 'integer'; types are"),
        (MINIMAL + "[[load]]\ntopics=['a']\nkeep=['value']\n", "job.toml:5: a record has the parts key and headers"),
        (MINIMAL + "[[load]]\ntopics=['a']\nstart='tomorrow'\n", "job.toml:5: start must be a place in a topic"),
        (
            MINIMAL + "[schedule]\nevery = 30\n",
            'job.toml:4: every must be a length of time, like "30s" or "7d", not 30',
        ),
        (MINIMAL + "[compact]\nfile_size='big'\n", "job.toml:4: file_size must be a size"),
        (MINIMAL + "[brokers]\nbootstrap='a b'\n", "job.toml:4: 'a b' is not a broker address"),
        (
            MINIMAL + "[brokers.settings]\n'sasl.mechanism'='GSSAPI'\n'security.protocol'='SASL_SSL'\n",
            "job.toml:3: sasl.mechanism",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, expected: str) -> None:
    found = faults(text)
    assert len(found) == 1, found
    assert found[0].startswith(expected), found


def test_all_mistakes_are_reported_in_order() -> None:
    found = faults("[lake]\nformat='x'\n[[load]]\ntopcs=['a']\nformat='y'\n[spark]\nmaster=1\n")
    assert [fault.split(": ")[0] for fault in found] == [f"job.toml:{n}" for n in (1, 2, 4, 5, 7)]


def test_options_of_the_command_line_are_the_keys_of_a_load() -> None:
    load: dict[str, Any] = {"topics": ["a"]}
    add_options(load, ["time.field=at", "time.from=field", 'keep=["key"]', "commit_offsets=10", "columns.n=int"])
    made, found = job_from({"lake": {"path": "x"}, "load": [load]}, directory=HERE, now_ms=0)
    assert found.faults == []
    assert made is not None
    (spec,) = made.loads
    assert (spec.mapping.keep, spec.commit_offsets, spec.mapping.columns) == (("key",), 10, {"n": "int"})
    for wrong in ("time", "=x", "topics.x=1"):
        with pytest.raises(ValueError, match="--option"):
            add_options(load, [wrong])


def test_a_profile_gives_brokers_settings_and_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    read_by = tmp_path / "was-run"
    (tmp_path / "profiles.toml").write_text(
        f"""[profiles.production]
brokers = "c:1"
password_command = "sh -c 'touch {read_by}; echo secret'"
settings = {{ "security.protocol" = "SASL_PLAINTEXT", "sasl.mechanism" = "PLAIN", "sasl.username" = "alice" }}
"""
    )
    wrong = MINIMAL + "[brokers]\nprofile = 'production'\n[brokers.settings]\n'sasl.mechanism' = 'GSSAPI'\n"
    assert faults(wrong)[0].startswith("job.toml:5: sasl.mechanism")
    assert not read_by.exists(), "a wrong job needs no password"
    job, found = read_job(MINIMAL + "[brokers]\nprofile = 'production'\n", directory=HERE, now_ms=0)
    assert job is not None, found.faults
    assert (job.brokers.bootstrap, job.brokers.client.security.sasl) == ("c:1", Sasl("PLAIN", "alice", "secret"))
    other = MINIMAL + "[brokers]\nprofile = 'production'\nbootstrap = 'd:1'\n"
    job, _ = read_job(other, directory=HERE, now_ms=0)
    assert job is not None
    assert job.brokers.bootstrap == "d:1"
    assert faults(MINIMAL + "[brokers]\nprofile = 'x'\n")[0].startswith("job.toml:4: there is no profile 'x'")
    text = (tmp_path / "profiles.toml").read_text().replace("echo secret", "exit 1")
    (tmp_path / "profiles.toml").write_text(text)
    failed = faults(MINIMAL + "[brokers]\nprofile = 'production'\n")
    assert failed[0].startswith("job.toml:4: profile production: password_command ended with exit code 1")


def test_every_stage_has_its_section_and_can_be_loaded() -> None:
    names = {section.name for section in SECTIONS}
    for stage in STAGES:
        assert stage.section in names
        assert callable(stage.load())


keys = st.one_of(st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True), st.sampled_from(['"a b"', "'c.d'", '"é\\n"']))
values = st.recursive(
    st.sampled_from(
        [
            "1",
            "true",
            "1.5e3",
            "1979-05-27 07:32:00Z",
            '"x # no"',
            "'[[y]]'",
            '"""\na = 1\n[b]\n"""',
            "'''\n'c' = 2'''",
            '"\\""',
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[\n  # a comment ]\n" + ",\n".join(items) + "\n]"),
        st.dictionaries(keys, inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        ),
    ),
    max_leaves=6,
)
pairs = st.tuples(keys, values).map(lambda pair: f"{pair[0]} = {pair[1]}  # end")
heads = st.one_of(
    keys.map(lambda key: f"[{key}]"),
    keys.map(lambda key: f"[[{key}]]"),
    st.tuples(keys, keys).map(lambda k: f"[{k[0]}.{k[1]}]"),
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.one_of(pairs, pairs, heads, st.just("# x = 1"), st.just("")), max_size=12))
def test_every_key_that_toml_has_is_found_and_no_other(parts: list[str]) -> None:
    text = "\n".join(parts)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = lines_of(text)
    assert set(paths(document, ())) == set(found)
    lines = text.split("\n")
    for (first, *rest), line in found.items():
        if not rest and f"{first}".isascii() and f"{first}".isalnum():
            assert lines[line - 1].lstrip("[").startswith(f"{first}")


def paths(value: Any, above: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for name, inner in items for path in ((*above, name), *paths(inner, (*above, name)))]
