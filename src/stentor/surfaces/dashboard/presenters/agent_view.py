"""One agent's record, trust and lessons as its page shows them: pure.

A series as the points of an SVG line: pure.

Values of an agent's runtime without what may be a secret in them: pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.security.redaction import MASK, Redactor
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import SentinelAlert, Weight
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import TrustChange

MAX_CONNECTIONS = 100


def composite_score(record: dict[str, Any]) -> float:
    shares = {"alignment_score": 0.4, "accuracy_score": 0.4, "efficiency_score": 0.2}
    return sum(share * float(record[name]) for name, share in shares.items())


def present_trust(record: dict[str, Any], changes: list[TrustChange], now: int) -> dict[str, Any]:
    """The line goes up to now, with what decayed since the last change."""
    score = record["trust_score"]
    points = [(change.happened_at, change.score) for change in reversed(changes)]
    if points and score is not None and now > points[-1][0]:
        points.append((now, score))
    rows = [
        {
            "time": format_iso(one.happened_at),
            "kind": one.kind,
            "delta": one.delta,
            "score": one.score,
            "cause": one.cause,
        }
        for one in changes
    ]
    level = None if score is None else trust_model.find_level(score)
    return {
        "line": svg_line(points, 0.0, 1.0, is_stepped=True),
        "changes": rows,
        "level": level,
        "since": rows and rows[-1]["time"],
    }


def present_weights(
    weights: list[Weight], entries: list[dict[str, Any]], now: int, threshold: float
) -> list[dict[str, Any]]:
    """Each task type with its last outcomes and how its weight moved."""
    top = max((weight.weight_at(now) for weight in weights), default=0.0)
    return [
        {
            "type": weight.task_type,
            "weight": weight.weight_at(now),
            "most": max(top, 1.0),
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


def _weight_line(task_type: str, entries: list[dict[str, Any]]) -> SvgLine | None:
    """By number of the outcome, not by its time: bursts would be one stroke."""
    values = [float(one["weight_after"]) for one in reversed(entries) if one["task_type"] == task_type]
    if len(values) < 2:
        return None
    return svg_line(list(enumerate(values)), min(values), max(values))


def present_connections(found: list[dict[str, Any]], agent_id: str) -> list[dict[str, Any]]:
    """The strongest first, each by the other end."""
    strongest = sorted(found, key=lambda one: -one["weight"])[:MAX_CONNECTIONS]
    return [{**one, "other": one["agent2"] if one["agent1"] == agent_id else one["agent1"]} for one in strongest]


def present_agent_alert(alert: SentinelAlert) -> dict[str, Any]:
    times = {"opened_at": format_iso(alert.opened_at), "resolved_at": format_iso_or_none(alert.resolved_at)}
    return {name: getattr(alert, name) for name in ("task_type", "rate", "threshold", "samples")} | times


SVG_WIDTH, SVG_HEIGHT = 600, 100
"""Units of the drawing, which is stretched to the place that it gets."""
MAX_DOTS = 40
"""Of more points only the line is drawn."""


class SvgLine(msgspec.Struct, frozen=True):
    """`path` joins the points, `dots` are their places; both are path data."""

    path: str
    dots: str


def svg_line(
    points: Sequence[tuple[int, float]], low: float, high: float, *, is_stepped: bool = False
) -> SvgLine | None:
    """Of (time, value), the oldest first; None of nothing. A single point is in the middle.

    A stepped line keeps a value until the next one.
    """
    if not points:
        return None
    start, end = points[0][0], points[-1][0]
    places = [(_x(time, start, end), _y(value, low, high)) for time, value in points]
    placed = [f"{x} {y}" for x, y in places]
    dots = placed if len(placed) <= MAX_DOTS else []
    steps = (f"H{x} V{y}" if is_stepped else f"L{x} {y}" for x, y in places[1:])
    return SvgLine(" ".join((f"M{placed[0]}", *steps)), " ".join(f"M{place} h0" for place in dots))


def _x(time: int, start: int, end: int) -> str:
    share = (time - start) / (end - start) if end > start else 0.5
    return f"{SVG_WIDTH * share:.1f}"


def _y(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 0.5
    return f"{SVG_HEIGHT * (1 - max(0.0, min(1.0, share))):.1f}"


_NAMES_SECRET = re.compile(r"(?i)(key|token|secret|passwd|password|authorization|credentials?|cookie|signature)$")
_redactor = Redactor()
_OPTIONS = ("model", "max_tokens", "temperature", "top_p", "stop", "seed")


def mask_secrets(value: Any, name: str = "") -> Any:
    """The same value, masked under a name that promises a secret, in addresses, and after such an argument."""
    if value is not None and _NAMES_SECRET.search(name):
        return MASK
    if isinstance(value, dict):
        return {key: mask_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        before = ["", *value]
        return [mask_secrets(one, _option_name(last)) for last, one in zip(before, value, strict=False)]
    return _mask_text(value) if isinstance(value, str) else value


def _option_name(argument: Any) -> str:
    """`--api-key` promises that the next argument is one; `--api-key=...` has it in itself."""
    return argument if isinstance(argument, str) and argument.startswith("-") and "=" not in argument else ""


def _mask_text(text: str) -> str:
    if text.lower().startswith(("http://", "https://")):
        head, question, _ = text.partition("?")
        scheme, _, rest = head.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        return f"{scheme}://" + rest.removeprefix(f"{user}{at}") + (f"?{MASK}" if question else "")
    name, equals, _ = text.partition("=")
    if equals and _NAMES_SECRET.search(name) and " " not in name:
        return f"{name}={MASK}"
    return _redactor.redact(text)


def present_runtime(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What a page tells of how an agent works: names and values. Arguments, prompts and other options are counted."""
    rows = [("Runtime", str(found["kind"]))]
    options = found.get("options") or {}
    command = found.get("command") or []
    if found.get("name"):
        rows.append(("Built in as", str(found["name"])))
    if found.get("endpoint"):
        rows.append(("Endpoint", url_origin(str(found["endpoint"]))))
    if command:
        rows.append(("Program", f"{str(command[0]).rsplit('/', 1)[-1]}, {len(command) - 1} arguments"))
    rows += [(name.replace("_", " ").capitalize(), str(options[name])) for name in _OPTIONS if name in options]
    others = sorted(name for name in options if name not in _OPTIONS)
    return rows + ([("Other options", ", ".join(others))] if others else [])


def url_origin(address: str) -> str:
    """Scheme and host of an address; its path and query may hold a secret."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}"
    except ValueError:
        return MASK
