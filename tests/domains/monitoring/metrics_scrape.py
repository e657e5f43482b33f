"""Scrapes /metrics and parses the samples."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import World

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class MetricsScrape:
    """A response of /metrics. `samples` maps a name and its labels to a value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The value of `stentor_<name>` with exactly these labels. Raises KeyError."""
        return self.samples[f"stentor_{name}", frozenset(labels.items())]

    def values_by(self, name: str, label: str) -> dict[str, float]:
        """The non-zero values of `stentor_<name>`, keyed by one of its labels."""
        values = {
            dict(labels)[label]: value
            for (sample_name, labels), value in self.samples.items()
            if sample_name == f"stentor_{name}"
        }
        return {key: value for key, value in values.items() if value}

    def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return set(self.samples)


async def scrape(world: World) -> MetricsScrape:
    response = await world.admin.get("/metrics")
    assert response.status_code == 200, response.text
    return MetricsScrape(response.text)
