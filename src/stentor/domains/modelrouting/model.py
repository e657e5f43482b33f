"""Ranks models for a request by the rule that ranks agents (`routing/ranking.py`), and classifies requests. Pure.

A request has one of 24 kinds, eight subjects times three lengths, by cheap features of its prompt: few enough that each
gets enough evidence, and each has a name. Embeddings would cost more than the rest of the decision and have no names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stentor.core.clock import DAY, SECOND
from stentor.core.jsontext import JsonObject
from stentor.domains.learning.model import Weight
from stentor.domains.learning.outages import count_outage_failures
from stentor.domains.learning.view import LearningView
from stentor.domains.llm.model import ChatRequest, ImagePart
from stentor.domains.llm.token_estimates import estimate_input_tokens
from stentor.domains.routing import explain
from stentor.domains.routing.candidates import Candidate
from stentor.domains.routing.model import MAX_RECORDED_CANDIDATES, DeniedCandidate, RoutingDecision
from stentor.domains.routing.penalties import Preference
from stentor.domains.routing.ranking import RULE_VERSION, rank_candidates
from stentor.domains.routing.service import track_record_from_weight

NEUTRAL_PRIOR = 0.5
"""The prior of every model: models have no declared scores."""
MAX_CHANCE = 0.015
"""How probable the failures of an outage may be at most: more than for an agent, because a retry costs only time."""
RETRY_US, MAX_RETRY_US = 30 * SECOND, DAY
"""How long after its last failure a model is tried again at least and at most, else after as long as its outage took so
far."""
UNLIMITED_CONCURRENCY = 1_000_000
"""A provider runs many requests at a time, so open requests cause no waiting time."""
MODEL_NOT_FOUND, AGENT_IS_NO_MODEL, TEXT_ONLY = "MODEL_NOT_FOUND", "AGENT_IS_NO_MODEL", "TEXT_ONLY"
MODEL_NOT_ALLOWED = "MODEL_NOT_ALLOWED"
"""Codes of why a model of a group is no candidate."""
SUBJECTS = ("images", "tools", "json", "code", "maths", "script", "question", "instruction")
LENGTHS = ("short", "medium", "long")
MAX_SHORT_TOKENS, MAX_MEDIUM_TOKENS = 200, 2_000
"""Estimated tokens of the whole request up to which it is short, and medium."""
MAX_INSPECTED_CHARACTERS = 2_000
"""Only these first characters of the user's last message are inspected, so that a long prompt costs no more."""
NON_LATIN_SHARE = 0.3
"""Share of non-Latin letters above which a text counts as one in another script."""
LAST_LATIN = "\u024f"

# Every repetition has an upper bound: without one, a page of blank lines would take a second.
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


class NamedModel(msgspec.Struct, frozen=True):
    """A model in the form that the ranking expects of an agent; its id is its name, `provider/model`."""

    name: str
    composite: float = NEUTRAL_PRIOR

    @property
    def agent_id(self) -> str:
        return self.name


ModelCandidate = Candidate[NamedModel]
"""Its `ahead` is the number of open requests to `auto`; it is not `online` while it is paused."""


class ModelOption(msgspec.Struct, frozen=True):
    """A model that may be chosen. Costs in US dollars, None if unknown.

    `cost` is the estimate for the request before the model's first reply, `usual_cost` what a reply of the usual length
    costs at today's prices. A model's record keeps the mean cost of its replies as a multiple of that.
    """

    name: str
    cost: float | None = None
    usual_cost: float | None = None
    ahead: int = 0
    online: bool = True


class AutoAnswer(msgspec.Struct, frozen=True):
    """An answer that may be graded; times in microseconds.

    `sample` is its number among the model's outcomes at this kind, None if it did not count as evidence.
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
    options: Sequence[ModelOption], view: LearningView, tenant: str, kind: str, alpha: float, now: int
) -> list[ModelCandidate]:
    """Return the options with their track records; what replies cost so far replaces the estimate."""
    records = view.records(tenant, kind)
    by_grades = records.well_graded > 0
    candidates = []
    for option in options:
        weight = records.weights_by_agent.get(option.name)
        age = 0 if weight is None else records.progress.tick - weight.tick
        stale = records.progress.has_changed_since(weight)
        if weight is not None and not stale:
            stale = is_retry_due(weight, records.own_outages.first_failure(weight), now)
        recent = view.recent_by_agent.get(option.name)
        elsewhere = recent.elsewhere(kind) if recent else (0.0, 0.0)
        track_record = track_record_from_weight(
            NEUTRAL_PRIOR,
            alpha,
            weight,
            elsewhere,
            age,
            now,
            stale=stale,
            by_grades=by_grades,
            seen=records.progress.tick,
        )
        if (relative_cost := track_record.cost) is None or option.usual_cost is None:
            cost = option.cost
        else:
            cost = relative_cost * option.usual_cost
        track_record = msgspec.structs.replace(track_record, cost=cost)
        candidates.append(
            Candidate(
                NamedModel(option.name),
                track_record,
                ahead=option.ahead,
                concurrency=UNLIMITED_CONCURRENCY,
                online=option.online,
            )
        )
    return candidates


def is_retry_due(weight: Weight, first_failure: Weight, now: int) -> bool:
    """Return whether a model is to be tried again after an outage of its provider began, at `now` in microseconds.

    `first_failure` is its record when that began. If it fails again another one replies, so a retry costs little, while
    the others may cost much more.
    """
    if not count_outage_failures(weight, MAX_CHANCE):
        return False
    outage = weight.updated_at - first_failure.updated_at
    return now - weight.updated_at >= min(MAX_RETRY_US, max(RETRY_US, outage))


def choose_model(
    candidates: Sequence[ModelCandidate],
    kind: str,
    prefer: Preference,
    alpha: float,
    denied: Sequence[DeniedCandidate] = (),
) -> RoutingDecision:
    """Choose among at least one candidate. The decision has the form of a task's, so that both are explained alike."""
    ranking = rank_candidates(candidates, 0.0, prefer, MAX_RECORDED_CANDIDATES)
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
        candidates_total=len(candidates),
        denied=tuple(denied),
        denied_total=len(denied),
        preferred=False,
        online=best.online,
    )


def explain_choice(record: JsonObject, answered_by: str = "") -> str:
    """Explain in a sentence or two which model was chosen and why, and which one replied if it failed."""
    chosen = record.get("agent_name")
    if record.get("candidates_total") == 1:
        return f"{chosen} was the only candidate."
    why = explain.explain_decision(record | {"online": True})  # a model that is paused is not waited for
    return why if answered_by in ("", chosen) else f"{why} It failed, and {answered_by} answered."


def classify_request(request: ChatRequest) -> str:
    """Return `subject/length`, such as `code/short`; the first subject of `SUBJECTS` that fits."""
    tokens = estimate_input_tokens(request)
    length = LENGTHS[0] if tokens <= MAX_SHORT_TOKENS else LENGTHS[1] if tokens <= MAX_MEDIUM_TOKENS else LENGTHS[2]
    return f"{_subject(request)}/{length}"


def _subject(request: ChatRequest) -> str:
    if any(isinstance(part, ImagePart) for message in request.messages for part in message.content):
        return "images"
    if request.tools or any(message.tool_calls or message.role == "tool" for message in request.messages):
        return "tools"
    if request.format_type in ("json_object", "json_schema"):
        return "json"
    text = next((m.text for m in reversed(request.messages) if m.role == "user"), "")
    return _text_subject(text[:MAX_INSPECTED_CHARACTERS])


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
