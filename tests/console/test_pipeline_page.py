"""The page of a pipeline's job: its tables, audits and report."""

from pathlib import Path

from ottla.console.pages.pipeline import REPORT_POLICY
from ottla.testing import Kafka
from tests.support.console import browsing, options_for

JOB = """
[brokers]
bootstrap = "{bootstrap}"
[lake]
path = "lake"
[[load]]
topics = ["orders"]
[report]
output = "report.html"
[[report.section]]
show = "figures"
sql = "select 1"
"""


async def test_the_tables_of_a_job_their_audit_and_its_report_are_shown(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("orders")
    kafka.produce("orders", "{}")
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(bootstrap=kafka.bootstrap))
    async with browsing(options_for(kafka.bootstrap, job_file=job)) as browser:
        page = await browser.get("/pipeline")
        assert "orders" in page
        assert "not written yet" in page
        page = await browser.post("/pipeline/audit", {})
        assert "/topics/orders" in page
        (tmp_path / "report.html").write_text("<h1>Traffic</h1>")
        response = await browser.client.get("/pipeline/report")
        assert "Traffic" in response.text
        assert response.headers["content-security-policy"] == REPORT_POLICY


async def test_without_a_job_file_the_page_says_how_to_give_one(kafka: Kafka) -> None:
    async with browsing(options_for(kafka.bootstrap)) as browser:
        assert "--job" in await browser.get("/pipeline")
        await browser.get("/pipeline/report", 404)


async def test_a_job_file_with_mistakes_is_named(kafka: Kafka, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[nonsense]\n")
    async with browsing(options_for(kafka.bootstrap, job_file=job)) as browser:
        assert "the job file has mistakes" in await browser.get("/pipeline", 400)
