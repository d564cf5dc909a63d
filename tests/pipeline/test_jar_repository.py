"""Ivy, on a machine without Maven, uses the mirror of Maven's settings and the proxy of the environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ottla.pipeline.jar_repository import mirror_url, proxy_options
from ottla.pipeline.jars import Artifact, JarsNotFound, fetch_jars, installed_spark
from ottla.pipeline.java import JavaNotFound, cache_directory, java_home

POM = b"""<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>lib</artifactId>
<version>1.0</version></project>"""
FILES = {"/maven2/org/example/lib/1.0/lib-1.0.pom": POM, "/maven2/org/example/lib/1.0/lib-1.0.jar": b"a jar"}


def settings(home: Path, *mirrors: tuple[str, str], blocked: bool = False) -> None:
    """Write Maven's settings with mirrors: what they mirror, and their addresses."""
    (home / ".m2").mkdir(exist_ok=True)
    end = "<blocked>true</blocked></mirror>" if blocked else "</mirror>"
    found = "".join(f"<mirror><id>m</id><mirrorOf>{of}</mirrorOf><url> {url} </url>{end}" for of, url in mirrors)
    head = '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">'
    (home / ".m2" / "settings.xml").write_text(f"{head}<mirrors>{found}</mirrors></settings>")


@pytest.mark.parametrize("of", ["*", "central", "external:*", "other, central", "*,!internal"])
def test_a_mirror_of_central_is_taken_from_mavens_settings(tmp_path: Path, of: str) -> None:
    settings(tmp_path, ("other", "http://other/"), (of, "http://mirror/maven2"))
    assert mirror_url({"HOME": str(tmp_path)}) == "http://mirror/maven2"


@pytest.mark.parametrize("of", ["other", "*,!central", "external:http:*", ""])
def test_other_mirrors_are_not_taken(tmp_path: Path, of: str) -> None:
    settings(tmp_path, (of, "http://mirror/maven2"))
    assert mirror_url({"HOME": str(tmp_path)}) is None


def test_settings_without_a_usable_mirror_are_passed_over(tmp_path: Path) -> None:
    assert mirror_url({"HOME": str(tmp_path)}) is None
    settings(tmp_path, ("*", "http://0.0.0.0/"), blocked=True)
    assert mirror_url({"HOME": str(tmp_path)}) is None
    (tmp_path / ".m2" / "settings.xml").write_text("<settings>")
    assert mirror_url({"HOME": str(tmp_path)}) is None


def test_proxies_of_the_environment_are_options_of_java() -> None:
    given = {"https_proxy": "http://proxy:3128", "HTTP_PROXY": "other:8080", "no_proxy": "localhost, .example.org"}
    assert proxy_options(given) == [
        "-Dhttp.proxyHost=other",
        "-Dhttp.proxyPort=8080",
        "-Dhttps.proxyHost=proxy",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example.org",
    ]
    assert proxy_options({"no_proxy": "localhost"}) == []


@pytest.fixture
def repository() -> Iterator[tuple[int, list[str]]]:
    """A repository that is also a proxy for every host: its port, and the addresses that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = next((found for path, found in FILES.items() if self.path.endswith(path)), None)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815 - the name is that of the base class

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1], asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.parametrize("through", ["a mirror", "a proxy"])
def test_ivy_fetches_from_the_mirror_and_through_the_proxy(
    tmp_path: Path, repository: tuple[int, list[str]], through: str
) -> None:
    try:
        java_home(os.environ, print)
        installed_spark()
    except (JavaNotFound, JarsNotFound) as error:
        pytest.skip(str(error))
    port, asked = repository
    unproxied = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment = unproxied | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache_directory(os.environ).parent)}
    if through == "a mirror":
        settings(tmp_path, ("central", f"http://127.0.0.1:{port}/maven2"))
    else:
        settings(tmp_path, ("central", "http://repository.invalid/maven2"))
        environment["http_proxy"] = f"http://127.0.0.1:{port}"
    target = tmp_path / "jars"
    target.mkdir()
    fetch_jars([Artifact("org.example", "lib", "1.0")], target, environment, tool="ivy")
    assert (target / "lib-1.0.jar").read_bytes() == b"a jar"
    assert any(path.endswith("lib-1.0.jar") for path in asked)
    if through == "a proxy":
        assert all(path.startswith("http://repository.invalid/") for path in asked)
