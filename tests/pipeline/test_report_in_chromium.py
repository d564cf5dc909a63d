"""The report of the example access log in a headless Chromium: both widths and both colours.

`OTTLA_PICTURES=docs/console pytest tests/pipeline/test_report_in_chromium.py` photographs it for docs/pipeline.md.
"""

import os
from pathlib import Path

import pytest

from tests.pipeline.demo_process import run_demo
from tests.support import chromium

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.skipif(chromium.executable() is None, reason=chromium.NOT_THERE),
]
ROOT = Path(__file__).resolve().parents[2]
PICTURES = os.environ.get("OTTLA_PICTURES")
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}


@pytest.mark.usefixtures("spark_java")
def test_the_report_is_accessible_fits_loads_nothing_and_is_photographed(tmp_path: Path) -> None:
    done = run_demo(output=tmp_path / "output", output_format="json")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "output" / "report.html"
    axe, found = chromium.axe_script(), []
    with chromium.chromium() as browser:
        for colours in ("light", "dark"):
            for width, (wide, high) in WIDTHS.items():
                context = browser.new_context(viewport={"width": wide, "height": high}, color_scheme=colours)
                page = context.new_page()
                problems, asked = chromium.Problems(page), list[str]()
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.goto(report.as_uri())
                is_shown = colours == "light" and width == "desktop"
                directory = ROOT / PICTURES if PICTURES and is_shown else tmp_path
                picture = directory / ("report.png" if is_shown else f"report-{width}-{colours}.png")
                page.screenshot(path=picture)
                assert picture.stat().st_size > 0
                found += [f"{width}, {colours}: {each}" for each in chromium.violations(page, axe)]
                if page.evaluate("document.documentElement.scrollWidth") > wide:
                    found.append(f"{width}, {colours}: wider than the window")
                assert asked == [report.as_uri()]  # one file without references to others
                assert not problems.found
                context.close()
    assert not found
