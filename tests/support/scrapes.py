"""Reads the metrics of a broker as a client of /metrics does, by the parser of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from ottla.metrics.reader import MetricsReader

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scraped:
    """The samples of a page, by name and labels."""

    def __init__(self, text: str, *, is_openmetrics: bool = False) -> None:
        parse = openmetrics_families if is_openmetrics else prometheus_families
        self.families = list(parse(text))
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): float(sample.value)
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: object) -> float:
        """Return the value of one sample."""
        return self.samples[name, frozenset((key, str(value)) for key, value in labels.items())]

    def having(self, name: str, **labels: object) -> dict[frozenset[tuple[str, str]], float]:
        """Return the samples of a name that have these labels, and others."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        return {found: value for (of, found), value in self.samples.items() if of == name and wanted <= found}

    @property
    def names(self) -> set[str]:
        """Return the names of all samples."""
        return {name for name, _ in self.samples}


async def scrape(reader: MetricsReader, accept: str = "") -> Scraped:
    """Scrape a broker in process."""
    scraped = await reader.scrape(accept)
    return Scraped(await scraped.text(), is_openmetrics="openmetrics" in scraped.content_type)


def together(pages: Iterable[Scraped], name: str, **labels: object) -> list[float]:
    """Return the values of a series on all brokers that have it."""
    return [value for page in pages for value in page.having(name, **labels).values()]
