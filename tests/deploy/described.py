"""The files in deploy/ as data: containers with their commands, variables, ports and paths, whatever runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stentor.cli.main import COMMANDS, LazyCommand
from stentor.core import settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNIT = DEPLOY / "systemd" / "stentor.service"
EXAMPLES = tuple(KUBERNETES.glob("*.example.yaml"))
_VARIABLE = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class Container:
    """Something that runs the program: the words after `stentor`, and the variables that are set for it."""

    where: str
    words: list[str] = field(default_factory=list)
    variables: frozenset[str] = frozenset()


@cache
def load(path: Path) -> list[Any]:
    """The documents of a YAML file; a key that stands twice is an error."""
    return [document for document in YAML(typ="safe", pure=True).load_all(path) if document is not None]


def compose() -> dict[str, Any]:
    [document] = load(COMPOSE)
    return dict(document)


def objects() -> list[dict[str, Any]]:
    """What `kubectl apply -k` sends, and the examples."""
    return [
        document
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in load(path)
    ]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects() if one["kind"] == kind}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every template of a pod with the name of what makes it."""
    for kind in ("Deployment", "Job"):
        for name, one in of_kind(kind).items():
            yield name, one["spec"]["template"]["spec"]


def ours() -> dict[str, Any]:
    """The services of the compose file that run the image."""
    return {name: one for name, one in compose()["services"].items() if "build" in one}


def containers() -> Iterator[Container]:
    for name, one in ours().items():
        variables = frozenset(one["environment"])
        for words in _commands(one):
            yield Container(f"compose {name}", words, variables)
    shared = frozenset(of_kind("ConfigMap")["stentor"]["data"]) | frozenset(of_kind("Secret")["stentor"]["stringData"])
    for name, pod in pods():
        for one in pod["containers"]:
            yield Container(f"kubernetes {name}", one["args"], shared)
    unit = UNIT.read_text()
    [start] = re.findall(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)
    example = (UNIT.parent / "stentor.env.example").read_text()
    yield Container("systemd", start.split(), frozenset(re.findall(r"^(\w+)=", example, re.MULTILINE)))
    image = DOCKERFILE.read_text()
    yield Container("image", ["serve"], frozenset(re.findall(r"\b(SERVICE_\w+)=", image)))


def _commands(one: dict[str, Any]) -> Iterator[list[str]]:
    if "command" in one:
        yield list(one["command"])
    for text in one.get("entrypoint", [])[2:]:
        yield from (words.split()[1:] for words in text.split(" && "))
    check = one.get("healthcheck", {}).get("test", [])
    if "stentor" in check:
        yield check[check.index("stentor") + 1 :]


def asked_for() -> frozenset[str]:
    """Variables that the compose file takes from the one who starts it."""
    return frozenset(_VARIABLE.findall(COMPOSE.read_text()))


def known_variables() -> frozenset[str]:
    return frozenset(meta.env for meta in settings.setting_infos().values())


def options(words: list[str]) -> tuple[list[str], set[str]]:
    """The options among the words, and those that the command has which the words name."""
    name, *rest = words
    command = LazyCommand(name, COMMANDS[name]).loaded
    while rest and hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return [word for word in rest if word.startswith("--")], {name for one in command.params for name in one.opts}
