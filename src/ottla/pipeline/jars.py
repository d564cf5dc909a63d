"""Fetches jars and all they depend on: by Maven where it is installed, otherwise by the Ivy in PySpark's own jars.

Both take mirrors and proxies that the machine is set up with, otherwise Maven Central. Spark's official connector, for
those who stay with `format("kafka")` and for comparisons, is fetched in the version that fits the installed Spark:
repositories do not always have that very version; releases of one minor version fit one another, so the newest
available one is taken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ottla.pipeline.jar_repository import ivy_settings, mirror_url, proxy_options
from ottla.pipeline.java import JavaNotFound, cache_directory, java_home, trust_options

Notify = Callable[[str], None]
CONNECTOR = "spark-sql-kafka-0-10"
_GROUP = "org.apache.spark"
_TIMEOUT_S = 600
_SPARK_SQL = re.compile(r"spark-sql_(\d+\.\d+)-(\d+)\.(\d+)\.(\d+)\.jar")
_VERSIONED = re.compile(r"(.+?)-(\d[\w.\-]*)\.jar")


class JarsNotFound(RuntimeError):
    """The jars cannot be fetched; the message lists the attempts."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The coordinates of an artifact in a Maven repository."""

    group: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Jars:
    """Names the jars of Spark's Kafka connector."""

    files: tuple[Path, ...]
    version: str
    """Of the connector; the same minor version as Spark's."""
    how: str
    """The tool that fetched them."""

    @property
    def spark_option(self) -> str:
        """For `--jars` and `spark.jars`."""
        return ",".join(map(str, self.files))


@dataclass(frozen=True, slots=True)
class InstalledSpark:
    """PySpark's own jars, and the versions of Spark and Scala they are for."""

    jars: Path
    scala: str
    version: tuple[int, int, int]

    @property
    def text(self) -> str:
        """Return the version as text, such as 4.0.5."""
        return ".".join(map(str, self.version))

    @property
    def coordinates(self) -> str:
        """For `spark.jars.packages`, in the very version of Spark."""
        return f"{_GROUP}:{CONNECTOR}_{self.scala}:{self.text}"

    def candidates(self) -> list[str]:
        """Return the versions of the connector that fit, the best first."""
        major, minor, patch = self.version
        return [f"{major}.{minor}.{n}" for n in range(patch, -1, -1)]

    def has(self, jar: str) -> bool:
        """Return whether Spark brings this library itself, in whatever version."""
        named = _VERSIONED.fullmatch(jar)
        return named is not None and any(
            other[1] == named[1] for path in self.jars.glob("*.jar") if (other := _VERSIONED.fullmatch(path.name))
        )


def installed_spark() -> InstalledSpark:
    """Find PySpark without importing it. Raises JarsNotFound."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsNotFound("PySpark is not installed; the jars must fit it")
    jars = Path(spec.origin).parent / "jars"
    for path in jars.glob("spark-sql_*.jar"):
        if match := _SPARK_SQL.fullmatch(path.name):
            return InstalledSpark(jars, match[1], (int(match[2]), int(match[3]), int(match[4])))
    raise JarsNotFound(f"{jars} holds no spark-sql jar, which names Spark's version")


def connector_jars(environment: Mapping[str, str], notify: Notify, *, tool: str | None = None) -> Jars:
    """Return the connector's jars, fetched on first use. `tool` as for `fetch_jars`. Raises JarsNotFound."""
    spark = installed_spark()
    by = tool or default_tool(environment)
    target = cache_directory(environment) / f"spark-kafka-{spark.text}-{by}"
    note = target / "how.txt"
    if not note.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fetched = Path(scratch) / "jars"
            fetched.mkdir()
            _fetch_connector(spark, fetched, by, environment, notify)
            shutil.rmtree(target, ignore_errors=True)
            fetched.rename(target)
    version, _, how = note.read_text().strip().partition(" ")
    return Jars(tuple(sorted(target.glob("*.jar"))), version, how)


def _fetch_connector(
    spark: InstalledSpark, target: Path, by: str, environment: Mapping[str, str], notify: Notify
) -> None:
    """Fill a directory with the jars Spark lacks, and a note of the tool. Raises JarsNotFound."""
    reasons = []
    for version in spark.candidates():
        notify(f"asking {by} for {CONNECTOR}_{spark.scala} {version}")
        try:
            how = fetch_jars([Artifact(_GROUP, f"{CONNECTOR}_{spark.scala}", version)], target, environment, tool=by)
        except JarsNotFound as error:
            reasons.append(f"{version}: {error}")
            continue
        for jar in target.glob("*.jar"):
            if spark.has(jar.name):
                jar.unlink()
        if list(target.glob(f"{CONNECTOR}_*.jar")):
            (target / "how.txt").write_text(f"{version} {how}\n")
            return
        reasons.append(f"{version}: {how} brought no connector")
    raise JarsNotFound(f"no {CONNECTOR} for Spark {spark.text}: {'; '.join(reasons)}")


def default_tool(environment: Mapping[str, str]) -> str:
    """Return the tool that is installed: "maven" or "ivy"."""
    return "maven" if shutil.which("mvn", path=environment.get("PATH")) else "ivy"


def fetch_jars(
    artifacts: Sequence[Artifact], target: Path, environment: Mapping[str, str], *, tool: str | None = None
) -> str:
    """Copy artifacts and their dependencies into a directory, by "maven", "ivy" or what is installed (None).

    Returns the name of the tool for people. Raises JarsNotFound.
    """
    by = tool or default_tool(environment)
    return _by_maven(artifacts, target) if by == "maven" else _by_ivy(artifacts, target, environment)


def _by_maven(artifacts: Sequence[Artifact], target: Path) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{a.group}</groupId><artifactId>{a.name}</artifactId><version>{a.version}</version></dependency>"
        for a in artifacts
    )
    pom = target / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>ottla</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    try:
        _run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"])
    finally:
        pom.unlink()
    return "Maven (dependency:copy-dependencies)"


def _by_ivy(artifacts: Sequence[Artifact], target: Path, environment: Mapping[str, str]) -> str:
    if find_spec("pyspark") is None:
        raise JarsNotFound(
            "Maven (mvn) or the Ivy in PySpark fetches jars, and neither is installed: install Maven, or the "
            "pipeline's libraries: pip install '.[pipeline]' in a clone, or 'FILE.whl[pipeline]'"
        )
    ivy = next(installed_spark().jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise JarsNotFound(f"{installed_spark().jars} holds no Ivy, and mvn is not installed")
    try:
        home = java_home(environment, lambda _: None)
    except JavaNotFound as error:
        raise JarsNotFound(str(error)) from error
    dependencies = "".join(
        f'<dependency org="{a.group}" name="{a.name}" rev="{a.version}" conf="default-&gt;default"/>' for a in artifacts
    )
    with tempfile.TemporaryDirectory() as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(
            '<ivy-module version="2.0"><info organisation="ottla" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        command = [str(home / "bin" / "java"), *trust_options(home, environment, Path(scratch))]
        command += [*proxy_options(environment), "-jar", str(ivy)]
        if url := mirror_url(environment):
            settings = Path(scratch) / "ivysettings.xml"
            settings.write_text(ivy_settings(url))
            command += ["-settings", str(settings)]
        command += ["-ivy", str(module), "-cache", str(Path(scratch) / "cache"), "-types", "jar", "bundle"]
        _run([*command, "-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"])
    return f"Ivy ({ivy.name}, from PySpark)"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise JarsNotFound(str(error)) from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        causes = [line for line in lines if re.search(r"not find|not found|unresolved|Could not|PKIX", line)]
        raise JarsNotFound((causes or lines or ["no reason given"])[0].strip()[:300])
