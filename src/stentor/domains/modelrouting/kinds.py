"""What kind of request it is, by cheap features of the prompt: eight subjects times three lengths. Pure.

Few enough that evidence gathers at each, and each can be explained in a word. No embedding: it costs more
than the rest of the decision, and makes clusters that nobody can name.
"""

from __future__ import annotations

import re

from stentor.domains.llm.model import Image, Request, input_estimate

SUBJECTS = ("images", "tools", "json", "code", "maths", "script", "question", "instruction")
LENGTHS = ("short", "medium", "long")
SHORT, MEDIUM = 200, 2_000
"""Estimated tokens of the whole request up to which it is short, and medium."""
READ = 2_000
"""Characters of what the user said last that are looked at, so that a long prompt costs no more than a short one."""
FOREIGN = 0.3
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


def kind_of(request: Request) -> str:
    """`subject/length`, such as `code/short`. The first subject that fits, in the order of `SUBJECTS`, is taken."""
    return f"{_subject(request)}/{_length(request)}"


def _subject(request: Request) -> str:
    if any(isinstance(part, Image) for message in request.messages for part in message.content):
        return "images"
    if request.tools or any(message.tool_calls or message.role == "tool" for message in request.messages):
        return "tools"
    if (request.response_format or {}).get("type") in ("json_object", "json_schema"):
        return "json"
    return _of_text(next((m.text for m in reversed(request.messages) if m.role == "user"), "")[:READ])


def _of_text(text: str) -> str:
    if _CODE.search(text):
        return "code"
    if _MATHS.search(text):
        return "maths"
    if _foreign(text):
        return "script"
    return "question" if text.rstrip().endswith("?") or _QUESTION.match(text) else "instruction"


def _foreign(text: str) -> bool:
    if text.isascii():
        return False
    letters = [character for character in text if character.isalpha()]
    return sum(letter > LAST_LATIN for letter in letters) > FOREIGN * len(letters)


def _length(request: Request) -> str:
    tokens = input_estimate(request)
    return LENGTHS[0] if tokens <= SHORT else LENGTHS[1] if tokens <= MEDIUM else LENGTHS[2]
