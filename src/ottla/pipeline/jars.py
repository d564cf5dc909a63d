"""The jars of Spark's official Kafka connector, the right ones for the Spark that is installed.

For those who stay with `format("kafka")`, and for the tests and benchmarks that compare with it. By Maven where the
machine has it, otherwise by the Ivy that lies in PySpark's own jars; both take their repository from the user's own
settings, or their built-in one. Repositories do not always have the connector in the very version of Spark that is
installed; releases of one minor version fit one another, so the newest of them that is to be had is taken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ottla.pipeline.java import JavaNotFound, cache_directory, java_home

Notify = Callable[[str], None]
CONNECTOR = "spark-sql-kafka-0-10"
_GROUP = "org.apache.spark"
_PATIENCE_S = 600
_SPARK_SQL = re.compile(r"spark-sql_(\d+\.\d+)-(\d+)\.(\d+)\.(\d+)\.jar")
_VERSIONED = re.compile(r"(.+?)-(\d[\w.\-]*)\.jar")


class JarsNotFound(RuntimeError):
    """The jars cannot be had here; the text says what was tried."""


@dataclass(frozen=True, slots=True)
class Jars:
    """What was found or fetched."""

    files: tuple[Path, ...]
    version: str
    """Of the connector; the same minor version as Spark's."""
    how: str
    """Which tool brought them."""

    @property
    def spark_option(self) -> str:
        """For `--jars` and `spark.jars`."""
        return ",".join(map(str, self.files))


@dataclass(frozen=True, slots=True)
class InstalledSpark:
    """PySpark's own jars and what they tell of it."""

    jars: Path
    scala: str
    version: tuple[int, int, int]

    @property
    def text(self) -> str:
        """Such as 4.0.5."""
        return ".".join(map(str, self.version))

    @property
    def coordinates(self) -> str:
        """For `spark.jars.packages`, in the very version of Spark."""
        return f"{_GROUP}:{CONNECTOR}_{self.scala}:{self.text}"

    def candidates(self) -> list[str]:
        """Versions of the connector that fit, the best first."""
        major, minor, patch = self.version
        return [f"{major}.{minor}.{n}" for n in range(patch, -1, -1)]

    def has(self, jar: str) -> bool:
        """Whether Spark brings this library itself, in whatever version."""
        named = _VERSIONED.fullmatch(jar)
        return named is not None and any(
            other[1] == named[1] for path in self.jars.glob("*.jar") if (other := _VERSIONED.fullmatch(path.name))
        )


def installed_spark() -> InstalledSpark:
    """Look at PySpark without importing it. Raises JarsNotFound."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsNotFound("PySpark is not installed; the jars must fit it")
    jars = Path(spec.origin).parent / "jars"
    for path in jars.glob("spark-sql_*.jar"):
        if found := _SPARK_SQL.fullmatch(path.name):
            return InstalledSpark(jars, found[1], (int(found[2]), int(found[3]), int(found[4])))
    raise JarsNotFound(f"{jars} holds no spark-sql jar that tells Spark's version")


def connector_jars(environment: Mapping[str, str], notify: Notify, *, tool: str | None = None) -> Jars:
    """The jars, fetched on first use. `tool` is "maven" or "ivy"; None takes what is there. Raises JarsNotFound."""
    spark = installed_spark()
    by = tool or ("maven" if shutil.which("mvn", path=environment.get("PATH")) else "ivy")
    target = cache_directory(environment) / f"spark-kafka-{spark.text}-{by}"
    told = target / "how.txt"
    if not told.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as aside:
            made = Path(aside) / "jars"
            made.mkdir()
            _fetch(spark, made, by, environment, notify)
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
    version, _, how = told.read_text().strip().partition(" ")
    return Jars(tuple(sorted(target.glob("*.jar"))), version, how)


def _fetch(spark: InstalledSpark, target: Path, by: str, environment: Mapping[str, str], notify: Notify) -> None:
    """Fill a directory with the jars Spark lacks, and a note of how. Raises JarsNotFound."""
    reasons = []
    for version in spark.candidates():
        notify(f"asking {by} for {CONNECTOR}_{spark.scala} {version}")
        try:
            how = _by_maven(spark, version, target) if by == "maven" else _by_ivy(spark, version, target, environment)
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


def _by_maven(spark: InstalledSpark, version: str, target: Path) -> str:
    pom = target / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>ottla</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies><dependency><groupId>{_GROUP}</groupId>"
        f"<artifactId>{CONNECTOR}_{spark.scala}</artifactId><version>{version}</version></dependency></dependencies>"
        "</project>"
    )
    try:
        _run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"])
    finally:
        pom.unlink()
    return "Maven (dependency:copy-dependencies)"


def _by_ivy(spark: InstalledSpark, version: str, target: Path, environment: Mapping[str, str]) -> str:
    ivy = next(spark.jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise JarsNotFound(f"{spark.jars} holds no Ivy")
    try:
        java = java_home(environment, lambda _: None) / "bin" / "java"
    except JavaNotFound as error:
        raise JarsNotFound(str(error)) from error
    cache = target / "ivy-cache"
    command = [str(java), "-jar", str(ivy), "-cache", str(cache)]
    command += ["-dependency", _GROUP, f"{CONNECTOR}_{spark.scala}", version, "-confs", "default"]
    try:
        _run([*command, "-retrieve", f"{target}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"])
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return f"Ivy ({ivy.name}, from PySpark)"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise JarsNotFound(str(error)) from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"not find|not found|unresolved|Could not", line)]
        raise JarsNotFound((telling or lines or ["no reason given"])[0].strip()[:300])
