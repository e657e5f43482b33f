"""An agent that is a system prompt and a model, called through the gateway with its budgets and its evidence."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.llm.call_guard import LlmCaller
from stentor.domains.llm.model import ChatRequest, ChatRole, LlmMessage, ReplyBuilder, TextPart
from stentor.domains.llm.service import LlmGateway
from stentor.domains.registry.model import Agent, LlmOptions
from stentor.domains.tasks.model import TaskClaim

ROLES: dict[str, ChatRole] = {"system": "system", "user": "user", "assistant": "assistant"}


class LlmDriver:
    """Input: a text, `{messages [{role, content}]}`, `{text}`, or any JSON, which the model reads as JSON.

    Result: `{text, model, usage {input_tokens, output_tokens}, finish_reason}`. What the gateway refuses, a provider's
    failure and a spent budget among it, is a provider failure: it says nothing about the agent.
    """

    def __init__(self, gateway: LlmGateway) -> None:
        self._gateway = gateway

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        request = _request(claim.input, parse_llm_options(agent))
        caller = LlmCaller(claim.tenant, claim.submitted_by, agent.agent_id, claim.task_id, claim.head_id)
        try:
            return await self._answer(caller, request, emit)
        except StentorError as error:
            raise ProviderFailed(error.code, error.message) from None

    async def _answer(self, caller: LlmCaller, request: ChatRequest, emit: EmitToken) -> AttemptOutcome:
        stream = await self._gateway.stream(caller, request)
        gathered = ReplyBuilder()
        try:
            async for delta in stream:
                gathered.add(delta)
                if delta.content:
                    emit(delta.content)
        finally:
            await stream.close()
        reply = gathered.build(stream.name)
        usage = msgspec.to_builtins(reply.usage) if reply.usage else {}
        counts = {name: usage[name] for name in ("input_tokens", "output_tokens") if name in usage}
        result = {"text": reply.content, "model": stream.name, "usage": counts, "finish_reason": reply.finish}
        return AttemptOutcome("degraded_success" if stream.degraded else "success", result)


def parse_llm_options(agent: Agent) -> LlmOptions:
    """Raises AgentFailed when the registration does not hold what it must."""
    try:
        return msgspec.convert(agent.runtime.options, LlmOptions)
    except msgspec.ValidationError as error:
        raise AgentFailed("AGENT_MISCONFIGURED", f"The options of the agent's runtime do not hold: {error}.") from None


def _request(given: Any, options: LlmOptions) -> ChatRequest:
    system = (LlmMessage("system", (TextPart(options.system_prompt),)),) if options.system_prompt else ()
    wished = given.get("options") if isinstance(given, dict) else None
    wished = wished if isinstance(wished, dict) else {}
    return ChatRequest(
        options.model or "",
        (*system, *_conversation(given)),
        max_tokens=_least(options.max_tokens, wished.get("max_tokens")),
        temperature=_number(options.temperature, wished.get("temperature"), 2),
        top_p=_number(options.top_p, wished.get("top_p"), 1),
        stop=options.stop,
        seed=options.seed,
    )


def _conversation(given: Any) -> tuple[LlmMessage, ...]:
    """What is said, without a header of any kind. Raises AgentFailed when nothing is."""
    if isinstance(given, dict) and isinstance(given.get("messages"), list) and given["messages"]:
        return tuple(_message(one) for one in given["messages"])
    said = given.get("text") if isinstance(given, dict) and set(given) <= {"text", "options"} else given
    text = said if isinstance(said, str) else jsontext.dump(said)
    if not text.strip():
        raise AgentFailed("INPUT_INVALID", "The agent needs a text, or an object with 'text' or 'messages'.")
    return (LlmMessage("user", (TextPart(text),)),)


def _message(one: Any) -> LlmMessage:
    role = ROLES.get(one.get("role", "")) if isinstance(one, dict) else None
    if role is None or not isinstance(one.get("content"), str):
        raise AgentFailed("INPUT_INVALID", "Each of 'messages' needs a role (system, user, assistant) and a content.")
    return LlmMessage(role, (TextPart(one["content"]),))


def _least(own: int | None, wished: Any) -> int | None:
    """A caller may ask for less than the agent's limit, not for more."""
    asked = wished if type(wished) is int and wished > 0 else None
    return min(own, asked) if own and asked else own or asked


def _number(own: float | None, wished: Any, most: float) -> float | None:
    """What the agent's registration leaves open is the caller's to choose."""
    if own is not None or not isinstance(wished, int | float) or isinstance(wished, bool):
        return own
    return float(wished) if 0 <= wished <= most else None
