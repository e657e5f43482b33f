"""Resolves a model name to the models to try, in order: weighted groups, then fallbacks. Pure.

The gateway (`service`) calls them. Source: docs/decisions/0012-llm-gateway.md.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from stentor.core.errors import StartRefused
from stentor.domains.llm.providers import Provider

MAX_WEIGHT = 1000
LATEST = ":latest"


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
        # Every name gains its weight and the chosen one loses the total, so that turns do not come in bursts.
        for name, weight in self.weights.items():
            self._credit[name] = self._credit.get(name, 0) + weight
        first = max(self._credit, key=lambda name: self._credit[name])
        self._credit[first] -= sum(self.weights.values())
        return [first, *(name for name in self.weights if name != first)]


class ModelRoutes:
    """Groups of models and fallbacks."""

    def __init__(self, groups: Sequence[str] = (), fallbacks: Sequence[str] = ()) -> None:
        """Parse the entries of SERVICE_LLM_GROUPS and SERVICE_LLM_FALLBACKS. Raises StartRefused."""
        self._groups: dict[str, WeightedRoundRobin] = {}
        for name, models in _split_entries(groups, "SERVICE_LLM_GROUPS"):
            try:
                self._groups[name] = WeightedRoundRobin(parse_weights(models))
            except ValueError as error:
                raise StartRefused(f"SERVICE_LLM_GROUPS: in {name!r} {error}.") from None
        self._fallbacks = dict(_split_entries(fallbacks, "SERVICE_LLM_FALLBACKS"))

    @property
    def groups(self) -> list[str]:
        return list(self._groups)

    @property
    def fallbacks(self) -> dict[str, list[str]]:
        return self._fallbacks

    def add(self, groups: Mapping[str, Sequence[str]], fallbacks: Mapping[str, Sequence[str]]) -> ModelRoutes:
        """Return these routes with more of them; a name that is known already keeps its models."""
        more = ModelRoutes()
        more._groups = {name: WeightedRoundRobin(parse_weights(models)) for name, models in groups.items()}
        # Last, so that the operator's groups win; shared, so that a group has one sequence of turns for all tenants.
        more._groups |= self._groups
        more._fallbacks = {name: list(models) for name, models in fallbacks.items()} | self._fallbacks
        return more

    def group_members(self, group: str) -> list[str] | None:
        """Return the models of a group without taking a turn; None if there is no such group."""
        turns = self._groups.get(group)
        return None if turns is None else list(turns.weights)

    def group_entries(self, group: str) -> list[str]:
        """Return the models of a group with their weights, as in the settings."""
        weights = self._groups[group].weights
        return [model if weight == 1 else f"{model}*{weight}" for model, weight in weights.items()]

    def limit_to(self, allowed: Sequence[str], providers: Container[str]) -> Callable[[ModelTarget], bool]:
        """Return a function that tells whether a key may use a model.

        `allowed` are the key's patterns and groups, empty for all models. A pattern that does not begin with the name
        of one of the `providers` and a slash is for the model's name at any provider, as in a request; the name of a
        group allows its models.
        """
        if not allowed:
            return lambda target: True
        patterns = [glob.escape(name).replace("[*]", "*") for name in allowed]
        patterns += [glob.escape(model) for name in allowed for model in self.group_members(name) or ()]
        return lambda target: any(_matches(pattern, target, providers) for pattern in patterns)

    def candidate_names(self, model: str) -> list[str]:
        """Return the names to try for a model or group, in order and without duplicates; takes a turn of a group."""
        if not self._groups and not self._fallbacks:
            return [model]
        group = self._groups.get(model)
        names = group.next_order() if group else [model]
        # The fallbacks of `*` apply to every model.
        for name in (model, *names, "*"):
            names = [*names, *(fallback for fallback in self._fallbacks.get(name, []) if fallback not in names)]
        return names


class TenantRoutes:
    """The routes of each tenant: those of the settings, and those that its admins set."""

    def __init__(self, configured: ModelRoutes) -> None:
        self.configured = configured
        self._by_tenant: dict[str, ModelRoutes] = {}
        self.listeners: list[Callable[[], None]] = []
        """Called after the routes of a tenant changed; they must return at once."""

    def of(self, tenant: str) -> ModelRoutes:
        return self._by_tenant.get(tenant, self.configured)

    def set_stored(
        self, tenant: str, groups: Mapping[str, Sequence[str]], fallbacks: Mapping[str, Sequence[str]]
    ) -> None:
        self._by_tenant[tenant] = self.configured.add(groups, fallbacks)
        for listener in self.listeners:
            listener()


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


def _matches(pattern: str, target: ModelTarget, providers: Container[str]) -> bool:
    first, slash, _ = pattern.partition("/")
    names = [target.name] if slash else []
    # The names of many models have a slash too, such as those of OpenRouter.
    if not slash or first not in providers:
        names.append(target.model)
    # Ollama lists a model without a tag as `name:latest`. A star matches no comma: LiteLLM calls each model of `a,b`.
    return any(
        fnmatchcase(name.removesuffix(LATEST), pattern.removesuffix(LATEST)) and name.count(",") == pattern.count(",")
        for name in names
    )


def parse_weights(models: Sequence[str]) -> dict[str, int]:
    """Parse models with weights, such as `openai/a*3`; the default weight is 1. Raises ValueError."""
    weights = {}
    for part in models:
        model, _, weight = part.rpartition("*")
        if not model:
            model, weight = part, "1"
        if not (weight.isascii() and weight.isdigit() and len(weight) < 5 and 0 < int(weight) <= MAX_WEIGHT):
            raise ValueError(f"the weight of {part!r} is not a number from 1 to {MAX_WEIGHT}")
        weights[model] = int(weight)
    return weights


def _split_entries(entries: Sequence[str], setting: str) -> list[tuple[str, list[str]]]:
    """Return the name and the models of each entry `name=model|model`. Raises StartRefused."""
    pairs = []
    for entry in entries:
        name, equals, rest = (part.strip() for part in entry.partition("="))
        models = [part.strip() for part in rest.split("|") if part.strip()]
        if not (name and equals and models):
            raise StartRefused(f"{setting}: {entry!r} is invalid; expected name=model|model.")
        pairs.append((name, models))
    return pairs
