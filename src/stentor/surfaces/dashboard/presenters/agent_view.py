"""Values of an agent's page: trust, Hebbian weights, SVG lines, and runtimes with secrets masked. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.core.security.redaction import MASK, Redactor
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import Weight
from stentor.domains.registry.model import TrustTier
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import TrustChange, TrustLevel

MAX_CONNECTIONS = 100
SVG_WIDTH, SVG_HEIGHT = 600, 100
"""Units of the drawing; the page stretches it."""
MAX_DOTS = 40
"""With more points only the line is drawn."""
TIERS: dict[TrustTier, str] = {
    "auto": "Its tasks run at once. Same as monitored, unless a rule of your policy file tells them apart.",
    "monitored": "Its tasks run at once. This is the default tier.",
    "human": "Each of its tasks waits until a person approves it.",
}
SCORES = {
    "alignment": "how well it follows instructions",
    "accuracy": "how often it is right",
    "efficiency": "how little time and cost it takes",
}
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passwd|password|authorization|credentials?|cookie|signature)$")
_redactor = Redactor()
_OPTIONS = (
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "repeat",
    "entrypoint",
    "num_cpus",
    "num_gpus",
)


class SvgLine(msgspec.Struct, frozen=True):
    """SVG path data: `path` joins the points, `dots` marks them."""

    path: str
    dots: str


class TrustPanel(TypedDict):
    line: SvgLine | None
    changes: list[TrustChange]
    level: TrustLevel | None
    since: int | None


class WeightRow(TypedDict):
    """A task type; `recent` is a text of S and F, `scale_max` the value at which the bar is full."""

    type: str
    weight: float
    scale_max: float
    mean_ms: float
    samples: int
    recent: str
    successes: int
    rate: float
    alarming: bool
    line: SvgLine | None


def composite_score(record: JsonObject) -> float:
    weights = {"alignment_score": 0.4, "accuracy_score": 0.4, "efficiency_score": 0.2}
    return sum(weight * float(record[name]) for name, weight in weights.items())


def present_trust(record: JsonObject, changes: list[TrustChange], now: int) -> TrustPanel:
    """Return the trust history, newest first. The line goes up to `now`, including the decay since the last change."""
    score = record["trust_score"]
    points = [(change.happened_at, change.score) for change in reversed(changes)]
    if points and score is not None and now > points[-1][0]:
        points.append((now, score))
    return {
        "line": svg_line(points, 0.0, 1.0, is_stepped=True),
        "changes": changes,
        "level": None if score is None else trust_model.find_level(score),
        "since": changes[-1].happened_at if changes else None,
    }


def present_weights(weights: list[Weight], entries: list[JsonObject], now: int, threshold: float) -> list[WeightRow]:
    """Return a row for each task type; `entries` are the learning history, newest first, for the trend lines."""
    top = max((weight.weight_at(now) for weight in weights), default=0.0)
    return [
        {
            "type": weight.task_type,
            "weight": weight.weight_at(now),
            "scale_max": max(top, 1.0),
            "mean_ms": weight.mean_ms,
            "samples": weight.samples,
            "recent": weight.recent,
            "successes": weight.recent.count("S"),
            "rate": learning.oscillation_rate(weight.recent),
            "alarming": learning.is_alarming(weight.recent, threshold),
            "line": _weight_line(weight.task_type, entries),
        }
        for weight in weights
    ]


def _weight_line(task_type: str, entries: list[JsonObject]) -> SvgLine | None:
    # The x axis is the number of the outcome: by time, a burst of outcomes would be one vertical stroke.
    values = [float(entry["weight_after"]) for entry in reversed(entries) if entry["task_type"] == task_type]
    if len(values) < 2:
        return None
    return svg_line(list(enumerate(values)), min(values), max(values))


def present_connections(connections: list[JsonObject], agent_id: str) -> list[JsonObject]:
    """Return the strongest connections first, each with the id of the `other` agent."""
    strongest = sorted(connections, key=lambda link: -link["weight"])[:MAX_CONNECTIONS]
    return [{**link, "other": link["agent2"] if link["agent1"] == agent_id else link["agent1"]} for link in strongest]


def svg_line(
    points: Sequence[tuple[int, float]], low: float, high: float, *, is_stepped: bool = False
) -> SvgLine | None:
    """Draw (time, value) points, oldest first; None without points. A single point is centered.

    A stepped line keeps each value until the next one.
    """
    if not points:
        return None
    start, end = points[0][0], points[-1][0]
    coordinates = [(_x(time, start, end), _y(value, low, high)) for time, value in points]
    positions = [f"{x} {y}" for x, y in coordinates]
    dots = positions if len(positions) <= MAX_DOTS else []
    segments = (f"H{x} V{y}" if is_stepped else f"L{x} {y}" for x, y in coordinates[1:])
    return SvgLine(" ".join((f"M{positions[0]}", *segments)), " ".join(f"M{position} h0" for position in dots))


def _x(time: int, start: int, end: int) -> str:
    share = (time - start) / (end - start) if end > start else 0.5
    return f"{SVG_WIDTH * share:.1f}"


def _y(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 0.5
    return f"{SVG_HEIGHT * (1 - max(0.0, min(1.0, share))):.1f}"


def mask_secrets(value: Any, name: str = "") -> Any:
    """Return the value with secrets masked: under a secret's name, in URLs, and after an argument with such a name."""
    if value is not None and _SECRET_NAME.search(name):
        return MASK
    if isinstance(value, dict):
        return {key: mask_secrets(member, str(key)) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        # `--api-key SECRET` as two arguments: the previous argument tells whether to mask this one.
        previous_items = ["", *value]
        return [
            mask_secrets(item, _option_name(previous)) for previous, item in zip(previous_items, value, strict=False)
        ]
    return _mask_text(value) if isinstance(value, str) else value


def _option_name(argument: Any) -> str:
    """Return the option whose value is the next argument, such as `--api-key`; `--api-key=...` contains its value."""
    return argument if isinstance(argument, str) and argument.startswith("-") and "=" not in argument else ""


def _mask_text(text: str) -> str:
    # An address may have a password before the host and a token in its query.
    if text.lower().startswith(("http://", "https://")):
        head, question, _ = text.partition("?")
        scheme, _, rest = head.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        return f"{scheme}://" + rest.removeprefix(f"{user}{at}") + (f"?{MASK}" if question else "")
    name, equals, _ = text.partition("=")
    if equals and _SECRET_NAME.search(name) and " " not in name:
        return f"{name}={MASK}"
    return _redactor.redact(text)


def present_runtime(runtime: JsonObject) -> list[tuple[str, str]]:
    """Return labels and values of a runtime. May hold secrets and is left out: arguments, prompts, other options'
    values.
    """
    rows = [("Runtime", str(runtime["kind"]))]
    options = runtime.get("options") or {}
    command = runtime.get("command") or []
    if runtime.get("name"):
        rows.append(("Built in as", str(runtime["name"])))
    if runtime.get("endpoint"):
        rows.append(("Endpoint", url_origin(str(runtime["endpoint"]))))
    if command:
        rows.append(("Program", f"{str(command[0]).rsplit('/', 1)[-1]}, {len(command) - 1} arguments"))
    rows += [(name.replace("_", " ").capitalize(), str(options[name])) for name in _OPTIONS if name in options]
    others = sorted(options.keys() - {*_OPTIONS, "system_prompt"})  # the prompt is shown by itself
    return rows + ([("Other options", ", ".join(others))] if others else [])


def present_prompt(runtime: JsonObject) -> str | None:
    """Return the system prompt of an agent that is a model, with secrets masked; None if it has none."""
    prompt = (runtime.get("options") or {}).get("system_prompt")
    return _redactor.redact(prompt) if isinstance(prompt, str) and prompt else None


def url_origin(address: str) -> str:
    """Return scheme and host of a URL; its path and query may hold a secret."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}"
    except ValueError:
        return MASK
