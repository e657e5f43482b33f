"""Ranks models for a request by the rule that ranks agents (routing/ranking.py). Pure.

What kind of request it is, by cheap features of the prompt: eight subjects times three lengths. Pure.

Few enough that evidence gathers at each, and each can be explained in a word. No embedding: it costs more
than the rest of the decision, and makes clusters that nobody can name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.domains.learning.service import LearningView
from stentor.domains.llm.model import ChatRequest, ImagePart, estimate_input_tokens
from stentor.domains.routing import explain
from stentor.domains.routing.model import MAX_RECORDED_CANDIDATES, DeniedCandidate, RoutingDecision
from stentor.domains.routing.ranking import RULE_VERSION, Preference, TrackRecord, rank_candidates
from stentor.domains.routing.service import track_record_from_weight

NEUTRAL_PRIOR = 0.5
"""The prior of every model: nobody declares how good one is."""
UNLIMITED_CONCURRENCY = 1_000_000
"""A provider answers many requests at a time, so those under way make nobody wait."""
MODEL_NOT_FOUND, AGENT_IS_NO_MODEL, TEXT_ONLY = "MODEL_NOT_FOUND", "AGENT_IS_NO_MODEL", "TEXT_ONLY"
"""Why a model of a group is no candidate."""


class NamedModel(msgspec.Struct, frozen=True):
    """A model as the ranking sees it; its id is its name, `provider/model`."""

    name: str
    composite: float = NEUTRAL_PRIOR

    @property
    def agent_id(self) -> str:
        return self.name


class ModelCandidate(msgspec.Struct, frozen=True):
    """`ahead` are the requests to `auto` that the model has now; not `online` while it is not to be called."""

    agent: NamedModel
    track_record: TrackRecord
    ahead: int = 0
    online: bool = True
    trust: float | None = None
    concurrency: int = UNLIMITED_CONCURRENCY


class ModelOption(msgspec.Struct, frozen=True):
    """A model that may be chosen. `cost` in US dollars is what the request would probably cost, None if unknown."""

    name: str
    cost: float | None = None
    ahead: int = 0
    online: bool = True


class AutoAnswer(msgspec.Struct, frozen=True):
    """An answer that may be graded. `sample` is its number among the model's outcomes at this kind, None when nothing
    was learned from it; times in microseconds.
    """

    answer_id: str
    model: str
    kind: str
    key_name: str
    decision_id: str
    sample: int | None
    answered_at: int
    grade: float | None = None
    comment: str | None = None
    graded_by: str | None = None
    graded_at: int | None = None

    @property
    def is_learned(self) -> bool:
        return self.sample is not None


def build_candidates(
    entries: Sequence[ModelOption], view: LearningView, tenant: str, kind: str, alpha: float, now: int
) -> list[ModelCandidate]:
    """The entries with what their records say; what a model costs here is its mean once it is known."""
    records = view.records(tenant, kind)
    found = []
    for entry in entries:
        record = records.weights_by_agent.get(entry.name)
        age = 0 if record is None else records.progress.tick - record.tick
        stale = records.progress.has_changed_since(record)
        sums = view.sums_by_agent.get(entry.name)
        known = track_record_from_weight(NEUTRAL_PRIOR, alpha, record, sums, age, now, stale=stale)
        if known.cost is None:
            known = msgspec.structs.replace(known, cost=entry.cost)
        found.append(ModelCandidate(NamedModel(entry.name), known, entry.ahead, entry.online))
    return found


def choose_model(
    ranked: Sequence[ModelCandidate],
    kind: str,
    prefer: Preference,
    alpha: float,
    denied: Sequence[DeniedCandidate] = (),
) -> RoutingDecision:
    """Choose among at least one candidate. A decision has the form of a task's, so that it is explained alike."""
    ranking = rank_candidates(ranked, 0.0, prefer, MAX_RECORDED_CANDIDATES)
    best = ranking.candidates[0]
    return RoutingDecision(
        agent_id=best.agent_id,
        agent_name=best.name,
        capability=(kind,),
        alpha=alpha,
        beta=0.0,
        trust_floor=0.0,
        trust_available=True,
        rule=RULE_VERSION,
        prefer=prefer,
        mean=ranking.mean,
        slope=ranking.slope,
        fastest_ms=ranking.fastest_ms,
        cheapest=ranking.cheapest,
        candidates=tuple(ranking.candidates),
        candidates_total=len(ranked),
        denied=tuple(denied),
        denied_total=len(denied),
        preferred=False,
        online=best.online,
    )


def explain_choice(record: dict[str, Any], answered_by: str = "") -> str:
    """Which model was chosen and why, in plain English, and which one answered instead of it."""
    chosen = record.get("agent_name")
    if record.get("candidates_total") == 1:
        return f"{chosen} was the only model to choose from."
    why = explain.explain_decision(record | {"online": True})  # no model is waited for, whatever its provider does now
    return why if answered_by in ("", chosen) else f"{why} It failed, and {answered_by} answered."


SUBJECTS = ("images", "tools", "json", "code", "maths", "script", "question", "instruction")
LENGTHS = ("short", "medium", "long")
MAX_SHORT_TOKENS, MAX_MEDIUM_TOKENS = 200, 2_000
"""Estimated tokens of the whole request up to which it is short, and medium."""
MAX_INSPECTED_CHARACTERS = 2_000
"""Characters of what the user said last that are looked at, so that a long prompt costs no more than a short one."""
NON_LATIN_SHARE = 0.3
"""Share of letters beyond the Latin ones from which on a text counts as one in another script."""
LAST_LATIN = "\u024f"

# No repetition without a bound: over a page of blank lines the search would take a second.
_CODE = re.compile(
    r"```|\b(?:python|javascript|typescript|java|golang|sql|bash|html|css|regex|json schema|traceback|stack ?trace|"
    r"refactor|compiler?|unit tests?|pytest|dockerfile)\b|"
    r"^[ \t]{0,40}(?:def |class |import |from \w+ import |#include|func |function |select .{1,80} from )|"
    r"[{};][ \t]{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_MATHS = re.compile(
    r"\d\s{0,3}[-+*/^=×÷]\s{0,3}\d|\\(?:frac|sum|int|sqrt)|\b(?:solve|equation|integral|derivative|probability|percent|"
    r"percentage|how many|theorem|prove)\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"\s*(?:who|what|when|where|which|why|how|is|are|was|were|do|does|did|can|could|should|would|will)\b", re.IGNORECASE
)


def classify_request(request: ChatRequest) -> str:
    """`subject/length`, such as `code/short`. The first subject that fits, in the order of `SUBJECTS`, is taken."""
    return f"{_subject(request)}/{_length(request)}"


def _subject(request: ChatRequest) -> str:
    if any(isinstance(part, ImagePart) for message in request.messages for part in message.content):
        return "images"
    if request.tools or any(message.tool_calls or message.role == "tool" for message in request.messages):
        return "tools"
    if (request.response_format or {}).get("type") in ("json_object", "json_schema"):
        return "json"
    return _text_subject(
        next((m.text for m in reversed(request.messages) if m.role == "user"), "")[:MAX_INSPECTED_CHARACTERS]
    )


def _text_subject(text: str) -> str:
    if _CODE.search(text):
        return "code"
    if _MATHS.search(text):
        return "maths"
    if _is_non_latin(text):
        return "script"
    return "question" if text.rstrip().endswith("?") or _QUESTION.match(text) else "instruction"


def _is_non_latin(text: str) -> bool:
    if text.isascii():
        return False
    letters = [character for character in text if character.isalpha()]
    return sum(letter > LAST_LATIN for letter in letters) > NON_LATIN_SHARE * len(letters)


def _length(request: ChatRequest) -> str:
    tokens = estimate_input_tokens(request)
    return LENGTHS[0] if tokens <= MAX_SHORT_TOKENS else LENGTHS[1] if tokens <= MAX_MEDIUM_TOKENS else LENGTHS[2]
