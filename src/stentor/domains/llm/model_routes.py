"""From the name of a model to the providers that are tried for it: names, weighted groups, fallbacks. Pure.

Source: docs/decisions, "LLM gateway".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stentor.core.errors import StartRefused
from stentor.domains.llm.providers import Provider


@dataclass(frozen=True)
class ModelTarget:
    """A model of a provider, by the provider's own name for it."""

    provider: Provider
    model: str

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model}"


@dataclass
class WeightedRoundRobin:
    """Takes turns in proportion to the weights, as evenly as can be."""

    weights: dict[str, int]
    _credit: dict[str, int] = field(default_factory=dict)

    def next_order(self) -> list[str]:
        """The names, the one whose turn it is first."""
        for name, weight in self.weights.items():
            self._credit[name] = self._credit.get(name, 0) + weight
        first = max(self._credit, key=lambda name: self._credit[name])
        self._credit[first] -= sum(self.weights.values())
        return [first, *(name for name in self.weights if name != first)]


class ModelRoutes:
    """What the settings say: groups of models by weight, and what is tried when a model fails."""

    def __init__(self, groups: Sequence[str] = (), fallbacks: Sequence[str] = ()) -> None:
        """Raises StartRefused for an entry that cannot be read."""
        self._groups = {
            name: WeightedRoundRobin(_weights(name, rest)) for name, rest in _pairs(groups, "SERVICE_LLM_GROUPS")
        }
        self._fallbacks = {
            name: [part.strip() for part in rest.split("|") if part.strip()]
            for name, rest in _pairs(fallbacks, "SERVICE_LLM_FALLBACKS")
        }

    @property
    def groups(self) -> list[str]:
        return list(self._groups)

    @property
    def fallbacks(self) -> dict[str, list[str]]:
        return self._fallbacks

    def group_members(self, group: str) -> list[str] | None:
        """The models of a group, whoever's turn it is; None for a name that is no group."""
        found = self._groups.get(group)
        return None if found is None else list(found.weights)

    def candidate_names(self, model: str) -> list[str]:
        """All names to try for a model, in order, each once."""
        group = self._groups.get(model)
        found = group.next_order() if group else [model]
        for name in (model, *found, "*"):
            found = [*found, *(after for after in self._fallbacks.get(name, []) if after not in found)]
        return found


def resolve_qualified_name(model: str, providers: Mapping[str, Provider]) -> ModelTarget | None:
    """The target of `provider/model`, or None when no provider has this name."""
    name, slash, rest = model.partition("/")
    provider = providers.get(name)
    return ModelTarget(provider, rest) if slash and rest and provider else None


def resolve_listed_name(
    model: str, listings: Iterable[tuple[Provider, Sequence[str]]], default: str
) -> ModelTarget | None:
    """The provider that lists a bare name; the default one first, when several do."""
    having = [provider for provider, models in listings if model in models or f"{model}:latest" in models]
    having.sort(key=lambda provider: provider.name != default)
    return ModelTarget(having[0], model) if having else None


def _pairs(entries: Sequence[str], setting: str) -> list[tuple[str, str]]:
    pairs = []
    for entry in entries:
        name, equals, rest = (part.strip() for part in entry.partition("="))
        if not (name and equals and rest):
            raise StartRefused(f"{setting} has the entry {entry!r}, which is not of the form name=model|model.")
        pairs.append((name, rest))
    return pairs


def _weights(name: str, text: str) -> dict[str, int]:
    """`openai/a*3|groq/b`: a weight that is not named is 1."""
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
