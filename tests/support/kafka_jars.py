"""The jars of a real Apache Kafka: broker, tools, clients and all they need, fetched once into the cache directory.

By Maven where the machine has it, otherwise by the Ivy among PySpark's own jars, so that git, make and Python
are enough. Which one it was is written to `how.txt` beside the jars. Both take their repository from the user's own
settings (or their built-in one); none is named here.
"""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.support.jvm import JavaNotFound, cache_directory, java

VERSION = "4.1.1"
TIMEOUT_S = 600


def artifacts(version: str) -> tuple[tuple[str, str, str], ...]:
    """Organisation, name and version of each; the logger that writes nothing keeps the tools' output parseable."""
    return (
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        ("org.apache.kafka", "kafka-clients", version),
        ("org.slf4j", "slf4j-nop", "1.7.36"),
    )


class NoJars(Exception):
    """The jars cannot be had here; the text says why."""


def kafka_jars(version: str = VERSION) -> Path:
    """Return the directory of a version's jars, filled on first use. Raises `NoJars`."""
    target = cache_directory() / f"kafka-{version}"
    if (target / "how.txt").exists():
        return target
    try:
        program = java()
    except JavaNotFound as error:
        raise NoJars(str(error)) from error
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    how = by_maven(part, version) if shutil.which("mvn") else by_ivy(part, version, program)
    if not list(part.glob("kafka-server-*.jar")):
        raise NoJars(f"{how} brought no kafka-server jar")
    (part / "how.txt").write_text(f"{how}\n")
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    return target


def by_maven(target: Path, of_version: str) -> str:
    """Copy the jars with the machine's own Maven."""
    pom = target / "pom.xml"
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in artifacts(of_version)
    )
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>ottla</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    _run(copy, "Maven")
    pom.unlink()
    return "Maven (dependency:copy-dependencies)"


def by_ivy(target: Path, of_version: str, program: Path) -> str:
    """Copy the jars with the Ivy that PySpark carries."""
    spec = find_spec("pyspark")
    jars = list((Path(spec.origin).parent / "jars").glob("ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise NoJars("neither mvn nor PySpark's Ivy is installed")
    module = target / "ivy.xml"
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->default"/>'
        for group, name, version in artifacts(of_version)
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="ottla" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )
    pattern = f"{target}/[artifact]-[revision](-[classifier]).[ext]"
    resolve = [str(program), "-jar", str(jars[0]), "-ivy", str(module), "-cache", str(target / "ivy-cache")]
    _run([*resolve, "-retrieve", pattern, "-types", "jar", "bundle"], "Ivy")
    shutil.rmtree(target / "ivy-cache")
    module.unlink()
    return f"Ivy ({jars[0].name}, from PySpark)"


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise NoJars(f"{name} failed: {(done.stderr or done.stdout).strip()[-500:]}")
