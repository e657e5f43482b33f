"""What a scrape says, as samples."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import World

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped:
    """The answer of /metrics. `samples` are by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> float:
        """The value of `stentor_<name>` with exactly these labels. Raises KeyError."""
        return self.samples[f"stentor_{name}", frozenset(labels.items())]

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of `stentor_<name>` by one of its labels, without zeros."""
        found = {dict(labels)[label]: value for (of, labels), value in self.samples.items() if of == f"stentor_{name}"}
        return {key: value for key, value in found.items() if value}

    def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return set(self.samples)


async def scrape(world: World) -> Scraped:
    answer = await world.admin.get("/metrics")
    assert answer.status_code == 200, answer.text
    return Scraped(answer.text)
