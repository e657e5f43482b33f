"""A request to a model as a task for an agent, and the task's end as an answer: pure."""

from __future__ import annotations

from typing import Any

from stentor.core import jsontext
from stentor.core.errors import (
    AgentFault,
    BudgetExceeded,
    Conflict,
    InvalidRequest,
    ProviderError,
    StentorError,
    Timeout,
)
from stentor.domains.llm.model import ChatReply, ChatRequest, FinishReason, ImagePart, LlmMessage, TokenUsage
from stentor.domains.tasks.model import TaskDraft

RESULT_TEXT_FIELDS = ("text", "answer", "summary", "content", "output", "result")
"""Where the text of a result stands that is an object, first found first."""

NO_TOOLS = (
    "An agent that is used as a model answers with text and takes no tools of its caller. The models of providers take "
    "them: GET /v1/models lists both, and agents are those that begin with agent:."
)


def build_task_draft(capability: str, request: ChatRequest) -> TaskDraft:
    """A task of the capability's own type, with input `{text, messages [{role, content}], options?}`; `text` is the
    last thing the user said. Raises InvalidRequest for what agents do not take.
    """
    if request.tools or any(m.tool_calls or m.role == "tool" for m in request.messages):
        raise InvalidRequest(NO_TOOLS, {"fields": {"tools" if request.tools else "input": NO_TOOLS}})
    if request.response_format:
        raise InvalidRequest("An agent that is used as a model takes no response_format.")
    messages = [{"role": message.role, "content": _text(message)} for message in request.messages]
    said = next((one["content"] for one in reversed(messages) if one["role"] == "user"), "")
    given: dict[str, Any] = {"text": said, "messages": messages}
    if options := _options(request):
        given["options"] = options
    return TaskDraft(capability, given, required_capabilities=(capability,))


def _text(message: LlmMessage) -> str:
    if any(isinstance(part, ImagePart) for part in message.content):
        raise InvalidRequest("An agent that is used as a model takes text, and no images.")
    return message.text


def _options(request: ChatRequest) -> dict[str, Any]:
    wished = {"max_tokens": request.max_tokens, "temperature": request.temperature, "top_p": request.top_p}
    return {name: value for name, value in wished.items() if value is not None}


def extract_result_text(result: Any) -> str:
    """The text of a result: the result itself, its text by one of the usual names, or all of it as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        found = next((result[name] for name in RESULT_TEXT_FIELDS if isinstance(result.get(name), str)), None)
        if found is not None:
            return str(found)
    return jsontext.dump(result)


def build_reply(name: str, result: Any, *, by_model: bool, degraded: bool) -> ChatReply:
    """The answer; the finish and the count of tokens are believed when a model behind the gateway gave them."""
    known = result if by_model and isinstance(result, dict) else {}
    finish: FinishReason = "length" if known.get("finish_reason") == "length" else "stop"
    counts = known.get("usage") or {}
    usage = TokenUsage(counts.get("input_tokens", 0), counts.get("output_tokens", 0)) if counts else None
    return ChatReply(name, extract_result_text(result), finish, usage=usage, degraded=degraded)


def remaining_text(task_id: str, whole: str, said: str) -> str:
    """What is still to be said of an answer of which tokens were lost. Raises AgentFault when that cannot be known."""
    if not whole.startswith(said):
        raise AgentFault(f"A part of the answer was lost on the way. Task {task_id} has it.", {"task_id": task_id})
    return whole[len(said) :]


def error_for_task(task_id: str, status: str, code: str | None) -> StentorError:
    """What a task that did not complete is to the caller of a model. Agents' words stay with the task."""
    where = f"Task {task_id} has the reason."
    if code == "TIMEOUT":
        return Timeout(f"The agent did not answer in time. {where}", {"task_id": task_id})
    if status == "cancelled":
        return Conflict(f"The task was cancelled. {where}", {"task_id": task_id})
    if code == BudgetExceeded.code:
        spent = BudgetExceeded(f"The budget that the agent works on is spent. {where}", {"task_id": task_id})
        spent.retry_after = BUDGET_RETRY_SECONDS
        return spent
    if code in PROVIDER_ERROR_CODES:
        details = {"provider_failure": True, "task_id": task_id}
        return ProviderError(f"What the agent depends on failed ({code}). {where}", details)
    return AgentFault(f"The agent failed ({code or status}). {where}", {"task_id": task_id})


PROVIDER_ERROR_CODES = frozenset(("PROVIDER_ERROR", "RATE_LIMITED", "SERVICE_UNAVAILABLE", "MODEL_NOT_FOUND"))
BUDGET_RETRY_SECONDS = 3600
"""What a caller is told to wait: budgets are of days and months, and of which one it was stands with the task."""
