"""Resolves a model name to the models to try, in order: weighted groups, then fallbacks. Pure.

The gateway (`service`) calls them. Source: docs/decisions/0012-llm-gateway.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stentor.core.errors import StartRefused
from stentor.domains.llm.providers import Provider


@dataclass(frozen=True)
class ModelTarget:
    """A model of a provider, under the provider's own name for it."""

    provider: Provider
    model: str

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model}"


@dataclass
class WeightedRoundRobin:
    """Smooth weighted round robin: a name's turns are proportional to its weight and spread evenly."""

    weights: dict[str, int]
    _credit: dict[str, int] = field(default_factory=dict)

    def next_order(self) -> list[str]:
        """Return all names, beginning with the one whose turn it is."""
        # Every name gains its weight and the first one pays the total, so that turns do not come in bursts.
        for name, weight in self.weights.items():
            self._credit[name] = self._credit.get(name, 0) + weight
        first = max(self._credit, key=lambda name: self._credit[name])
        self._credit[first] -= sum(self.weights.values())
        return [first, *(name for name in self.weights if name != first)]


class ModelRoutes:
    """The configured groups of models (SERVICE_LLM_GROUPS) and fallbacks (SERVICE_LLM_FALLBACKS)."""

    def __init__(self, groups: Sequence[str] = (), fallbacks: Sequence[str] = ()) -> None:
        """Parse the entries of the settings. Raises StartRefused."""
        self._groups = {
            name: WeightedRoundRobin(_parse_weights(name, rest))
            for name, rest in _split_entries(groups, "SERVICE_LLM_GROUPS")
        }
        self._fallbacks = {
            name: [part.strip() for part in rest.split("|") if part.strip()]
            for name, rest in _split_entries(fallbacks, "SERVICE_LLM_FALLBACKS")
        }

    @property
    def groups(self) -> list[str]:
        return list(self._groups)

    @property
    def fallbacks(self) -> dict[str, list[str]]:
        return self._fallbacks

    def group_members(self, group: str) -> list[str] | None:
        """Return the models of a group without taking a turn; None if there is no such group."""
        turns = self._groups.get(group)
        return None if turns is None else list(turns.weights)

    def candidate_names(self, model: str) -> list[str]:
        """Return the names to try for a model or group, in order and without duplicates; takes a turn of a group."""
        group = self._groups.get(model)
        names = group.next_order() if group else [model]
        # The fallbacks of `*` apply to every model.
        for name in (model, *names, "*"):
            names = [*names, *(fallback for fallback in self._fallbacks.get(name, []) if fallback not in names)]
        return names


def resolve_qualified_name(model: str, providers: Mapping[str, Provider]) -> ModelTarget | None:
    """Return the target of `provider/model`; None if no provider has this name."""
    name, slash, rest = model.partition("/")
    provider = providers.get(name)
    return ModelTarget(provider, rest) if slash and rest and provider else None


def resolve_listed_name(
    model: str, listings: Iterable[tuple[Provider, Sequence[str]]], default: str
) -> ModelTarget | None:
    """Return the target of a bare model name; of several providers that list it, the default one is preferred."""
    # Ollama lists a model without a tag as `name:latest`.
    matching = [provider for provider, models in listings if model in models or f"{model}:latest" in models]
    matching.sort(key=lambda provider: provider.name != default)
    return ModelTarget(matching[0], model) if matching else None


def _split_entries(entries: Sequence[str], setting: str) -> list[tuple[str, str]]:
    pairs = []
    for entry in entries:
        name, equals, rest = (part.strip() for part in entry.partition("="))
        if not (name and equals and rest):
            raise StartRefused(f"{setting}: {entry!r} is invalid; expected name=model|model.")
        pairs.append((name, rest))
    return pairs


def _parse_weights(name: str, text: str) -> dict[str, int]:
    """Parse models with weights, such as `openai/a*3|groq/b`; the default weight is 1."""
    weights = {}
    for part in (part.strip() for part in text.split("|")):
        model, _, weight = part.rpartition("*")
        if not model:
            model, weight = part, "1"
        if not weight.isdigit() or not 0 < int(weight) <= 1000:
            raise StartRefused(
                f"SERVICE_LLM_GROUPS: the weight of {part!r} in {name!r} is not a number from 1 to 1000."
            )
        weights[model] = int(weight)
    return weights
