"""A headless Chromium, Debian's, driven by playwright; and axe-core, which checks pages for accessibility."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.jvm import cache_directory

AXE = "axe-core@4.14.1"
EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
NOT_THERE = "there is no Chromium here: make chromium installs it"


def executable() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in EXECUTABLES if (path := shutil.which(name)) is not None), None)


def axe_script() -> str:
    """Return the script of axe-core, which is fetched from the registry of npm once."""
    directory = cache_directory() / AXE.replace("@", "-")
    script = directory / "package" / "axe.min.js"
    if not script.exists():
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", AXE], cwd=directory, check=True, capture_output=True)
        (archive,) = directory.glob("*.tgz")
        with tarfile.open(archive) as files:
            files.extract("package/axe.min.js", directory, filter="data")
    return script.read_text(encoding="utf-8")


class Problems:
    """What must not be there: errors in the browser's console, of scripts, and of loading."""

    def __init__(self, page: Any) -> None:
        self.found: list[str] = []
        page.on("console", lambda message: self._add(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self._add(str(error)))
        page.on("requestfailed", lambda request: self._add(f"{request.url}: {request.failure}"))

    def _add(self, text: str) -> None:
        if "ERR_ABORTED" not in text:  # the browser left the page meanwhile
            self.found.append(text)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright."""
    from playwright.sync_api import sync_playwright

    path = executable()
    assert path is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def violations(page: Any, axe: str) -> list[str]:
    """Return what axe finds in a page, with the elements."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']][:3]}" for each in found]
