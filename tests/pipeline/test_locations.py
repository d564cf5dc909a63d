"""Locations: local paths and file:// URIs are taken everywhere, and every other scheme is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ottla.cli.options import parse_location
from ottla.cli.pipeline_jobs import LoadOptions
from ottla.pipeline.job_file.job import job_from, read_job
from ottla.pipeline.lake.catalog import RestCatalog
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.object_store import ObjectStore
from ottla.pipeline.lake.store_settings import StoreSettings
from ottla.pipeline.lake.stores import store_at
from ottla.pipeline.locations import UnsupportedLocation, local_path
from tests.support.lakes import directory_of

ELSEWHERE = ["s3a://bucket/lake", "gs://bucket/lake", "hdfs://host:8020/lake", "abfss://a@b/lake"]


@pytest.mark.parametrize(
    "location",
    [
        *ELSEWHERE,
        "GS://bucket/lake",
        "s3:/bucket/lake",
        "file://host/lake",
        "s3://bucket",
        "s3://key:secret@bucket/lake",
    ],
)
def test_another_scheme_is_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLocation, match="local") as refused:
        local_path(location)
    assert "secret" not in str(refused.value)
    with pytest.raises(typer.BadParameter):
        parse_location(location)
    if not location.startswith("file:"):  # a Path has merged the slashes before the host
        with pytest.raises(UnsupportedLocation):
            store_at(Path(location))
    job, found = read_job(f'[lake]\npath = "{location}"\n', directory=tmp_path, now_ms=0)
    assert job is None
    assert [(fault.line, fault.text[:6]) for fault in found.faults] == [(2, "path: ")]


@pytest.mark.parametrize("location", ELSEWHERE)
def test_no_directory_is_named_after_a_scheme(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.cli.pipeline import app

    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["load", "orders", "--lake", location, "--brokers", "127.0.0.1:1"])
    assert ran.exit_code != 0
    assert "not supported" in str(ran.exception)
    assert list(tmp_path.iterdir()) == []


def test_file_uris_are_paths_in_a_job_file_and_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, work = tmp_path / "a lake", tmp_path / "spark"
    text = f'[lake]\npath = "file://{tmp_path}/a%20lake"\n[spark]\nwork = "file:{work}"\n'
    job, _ = read_job(text, directory=Path("/elsewhere"), now_ms=0)
    assert job is not None
    assert (directory_of(job.lake), job.work) == (lake, work)
    monkeypatch.chdir(tmp_path)
    for given in (f"file://localhost{lake}", "a lake"):
        assert directory_of(LoadOptions(["orders"], lake=given, brokers="127.0.0.1:1").job().lake) == lake
    assert store_at(Path(f"file://{tmp_path}/lake")) == LocalStore(tmp_path / "lake")


def test_a_bucket_is_a_lake_with_the_settings_of_the_job_file(tmp_path: Path) -> None:
    text = '[lake]\npath = "s3://bucket/a/lake/"\nendpoint = "http://localhost:9000"\nprofile = "test"\nregion = "x"\n'
    job, _ = read_job(text, directory=tmp_path, now_ms=0)
    assert job is not None
    assert job.lake.store == ObjectStore("s3://bucket/a/lake", StoreSettings("http://localhost:9000", "x", "test"))
    assert LoadOptions(["orders"], lake="s3://b/l", brokers="127.0.0.1:1").job().lake.store.url == "s3://b/l"
    assert job.spark_work.name == "lake"


def test_iceberg_in_a_bucket_needs_a_catalog(tmp_path: Path) -> None:
    text = '[lake]\npath = "s3://bucket/lake"\nformat = "iceberg"\n'
    for more, expected in (("", "need a catalog"), ('catalog = "thrift://host"\n', "thrift is not supported")):
        job, found = read_job(text + more, directory=tmp_path, now_ms=0)
        assert job is None
        assert [expected in fault.text for fault in found.faults] == [True]
    job, _ = read_job(text + 'catalog = "https://host/api"\nvended = true\n', directory=tmp_path, now_ms=0)
    assert job is not None
    assert job.lake.catalog == RestCatalog("https://host/api", gives_credentials=True)


def test_a_tables_name_is_no_location(tmp_path: Path) -> None:
    values = {"lake": {"path": "lake"}, "load": [{"topics": ["a"], "table": "s3://bucket/a"}]}
    job, found = job_from(values, directory=tmp_path, now_ms=0)
    assert job is None
    assert "is a location" in found.faults[0].text


@pytest.mark.parametrize("name", ["lake", "a:b", "s3", "/data/s3:/x", "./s3:/x", "C:/x"])
def test_other_paths_stay_as_they_are(name: str) -> None:
    assert local_path(name) == Path(name)
