"""Agents that ship with the service and need no model: the summarizer, and the librarian where there is a memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from stentor.domains.execution.model import AgentFailed, Outcome
from stentor.domains.execution.runtimes import Emit
from stentor.domains.execution.runtimes.summarizer import MAX_SENTENCES, METHODS, Stopped, summarize
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Claim

T = TypeVar("T")
INLINE_CHARACTERS = 4_000
"""Shorter texts take less time than the hop to a thread."""


BuiltinAgent = Callable[[Claim, Agent, Emit], Awaitable[Outcome]]


class Builtin:
    """Dispatches to the named agent; `more` are those that need a part of the service."""

    def __init__(self, more: Mapping[str, BuiltinAgent] | None = None) -> None:
        self._agents: dict[str, BuiltinAgent] = {"summarizer": _summarizer, **(more or {})}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._agents)

    async def run(self, claim: Claim, agent: Agent, emit: Emit) -> Outcome:
        name = agent.runtime.name or "summarizer"
        if name not in self._agents:
            raise AgentFailed("AGENT_UNKNOWN", f"This service has no builtin agent {name!r}.")
        return await self._agents[name](claim, agent, emit)


async def _summarizer(claim: Claim, agent: Agent, emit: Emit) -> Outcome:
    """Long texts run in a thread that looks at a stop flag."""
    text, sentences = _request(claim.input, agent.runtime.options)
    method = str(agent.runtime.options.get("method", "salience"))
    if method not in METHODS:
        raise AgentFailed("AGENT_MISCONFIGURED", f"The summarizer has no method {method!r}.")
    if len(text) <= INLINE_CHARACTERS:
        summary = summarize(text, sentences, method)
    else:
        summary = await _in_thread(lambda stopped: summarize(text, sentences, method, stopped))
    for at, sentence in enumerate(summary.sentences):
        emit(f" {sentence}" if at else sentence)
    result = {"summary": " ".join(summary.sentences), "coverage": summary.coverage}
    return Outcome("success", result, performance=max(0.01, summary.coverage))


def _request(value: Any, options: dict[str, Any]) -> tuple[str, int]:
    """The text and the number of sentences from the task's input: a text, or {text, sentences?}."""
    text, sentences = value, options.get("sentences", 3)
    if isinstance(value, dict):
        text, sentences = value.get("text"), value.get("sentences", sentences)
    if not isinstance(text, str) or not text.strip():
        raise AgentFailed("INPUT_INVALID", "The summarizer needs a text: a string, or an object with 'text'.")
    if not isinstance(sentences, int) or not 1 <= sentences <= MAX_SENTENCES:
        raise AgentFailed("INPUT_INVALID", f"'sentences' must be a number from 1 to {MAX_SENTENCES}.")
    return text, sentences


async def _in_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(work, stop.is_set)
    except Stopped:
        raise asyncio.CancelledError from None
    finally:
        stop.set()
