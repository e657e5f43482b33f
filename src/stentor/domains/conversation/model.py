"""Converts a chat request to a task draft, and the outcome of the task to a reply or an error. Pure."""

from __future__ import annotations

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
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import ChatReply, ChatRequest, FinishReason, ImagePart, TokenUsage
from stentor.domains.tasks.model import TaskDraft

RESULT_TEXT_FIELDS = ("text", "answer", "summary", "content", "output", "result")
"""Fields of a result object that may hold its text; the first that exists is used."""
NO_TOOLS = (
    "An agent that is used as a model replies with text and accepts no tools. Use a model of a provider instead: "
    "GET /v1/models lists both, the names of agents begin with agent:."
)
PROVIDER_ERROR_CODES = frozenset(("PROVIDER_ERROR", "RATE_LIMITED", "SERVICE_UNAVAILABLE", "MODEL_NOT_FOUND"))
BUDGET_RETRY_SECONDS = 3600
"""Retry-After for an exhausted budget: budgets are of days and months, and which one it was is only in the task."""


def build_task_draft(capability: str, request: ChatRequest) -> TaskDraft:
    """Return a task whose type is the capability. Raises InvalidRequest for features that agents do not support.

    Its input is `{text, messages [{role, content}], options?}`; `text` is the last message of the user.
    """
    if request.tools or any(m.tool_calls or m.role == "tool" for m in request.messages):
        raise InvalidRequest(NO_TOOLS, {"fields": {"tools" if request.tools else "input": NO_TOOLS}})
    if request.format_type != "text":
        raise InvalidRequest("Agents as models do not support response_format. Use a model of a provider.")
    if any(isinstance(part, ImagePart) for message in request.messages for part in message.content):
        raise InvalidRequest("Agents as models accept text and no images. Use a model of a provider.")
    request.require_neutral("An agent that is used as a model")
    messages = [{"role": message.role, "content": message.text} for message in request.messages]
    last_text = next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
    task_input: JsonObject = {"text": last_text, "messages": messages}
    options = {"max_tokens": request.max_tokens, "temperature": request.temperature, "top_p": request.top_p}
    if given_options := {name: value for name, value in options.items() if value is not None}:
        task_input["options"] = given_options
    return TaskDraft(capability, task_input, required_capabilities=(capability,))


def extract_result_text(result: object) -> str:
    """Return the text of a result: the result itself, one of `RESULT_TEXT_FIELDS`, or all of it as JSON."""
    text = find_result_text(result)
    return jsontext.dump(result) if text is None else text


def find_result_text(result: object) -> str | None:
    """Return the result itself if it is text, or the first of its `RESULT_TEXT_FIELDS`; None without one."""
    if isinstance(result, str):
        return result
    if not isinstance(result, dict):
        return None
    return next((result[name] for name in RESULT_TEXT_FIELDS if isinstance(result.get(name), str)), None)


def build_reply(name: str, result: object, *, by_model: bool, degraded: bool) -> ChatReply:
    """Return the reply. Finish reason and token counts are used only if a model of the gateway reported them."""
    trusted = result if by_model and isinstance(result, dict) else {}
    ends: tuple[FinishReason, ...] = ("length", "content_filter")
    finish: FinishReason = next((end for end in ends if end == trusted.get("finish_reason")), "stop")
    counts = trusted.get("usage") or {}
    usage = TokenUsage(counts.get("input_tokens", 0), counts.get("output_tokens", 0)) if counts else None
    return ChatReply(name, extract_result_text(result), finish, usage=usage, degraded=degraded)


def remaining_text(task_id: str, complete: str, streamed: str) -> str:
    """Return the part of a result that was not streamed after tokens were lost. Raises AgentFault if it is unknown."""
    if not complete.startswith(streamed):
        raise AgentFault(f"A part of the reply was lost. Task {task_id} has the result.", {"task_id": task_id})
    return complete[len(streamed) :]


def error_for_task(task_id: str, status: str, code: str | None) -> StentorError:
    """Return the error for a task that did not complete. It has no text of the agent: that is only in the task."""
    where = f"Task {task_id} has the reason."
    if code == "TIMEOUT":
        return Timeout(f"The task of the agent timed out. {where}", {"task_id": task_id})
    if status == "cancelled":
        return Conflict(f"The task was cancelled. {where}", {"task_id": task_id})
    if code == BudgetExceeded.code:
        error = BudgetExceeded(
            f"The budget that the agent uses is exhausted, or reserved by calls in progress. {where}",
            {"task_id": task_id},
        )
        error.retry_after = BUDGET_RETRY_SECONDS
        return error
    if code in PROVIDER_ERROR_CODES:
        details = {"provider_failure": True, "task_id": task_id}
        return ProviderError(f"A provider that the agent depends on failed ({code}). {where}", details)
    return AgentFault(f"The agent failed ({code or status}). {where}", {"task_id": task_id})
