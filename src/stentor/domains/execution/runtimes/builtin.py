"""The builtin agents, which need no model: the summarizer, and the librarian if the service has a memory.

The librarian answers a question with sentences from the vault's notes and cites each; the algorithm of the summarizer
is in `summarizer.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from stentor.auth.principal import Principal
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.execution.runtimes.summarizer import MAX_SENTENCES, SUMMARY_METHODS, SummaryCancelled, summarize
from stentor.domains.memory.model import MaySearch, MemoryCaller
from stentor.domains.memory.search import SearchService
from stentor.domains.memory.text.excerpts import Passage, term_coverage
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import TaskClaim

INLINE_CHARACTERS = 4_000
"""Longest text that is summarized on the event loop: a shorter one takes less time than the switch to a thread."""
MAX_PASSAGES = 10
NOTHING_FOUND = "The notes say nothing about this."
NOTHING_FOUND_YET = "The notes that are indexed say nothing about this; the search index is still being built."
T = TypeVar("T")

BuiltinAgent = Callable[[TaskClaim, Agent, EmitToken], Awaitable[AttemptOutcome]]


class BuiltinDriver:
    """Runs the builtin agent that the runtime names. `extra_agents` are those that need other parts of the service."""

    def __init__(self, extra_agents: Mapping[str, BuiltinAgent] | None) -> None:
        self._agents: dict[str, BuiltinAgent] = {"summarizer": _run_summarizer, **(extra_agents or {})}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._agents)

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        name = agent.runtime.name or "summarizer"
        if name not in self._agents:
            raise AgentFailed(
                "AGENT_UNKNOWN",
                f"This service has no builtin agent {name!r}. It has: {', '.join(sorted(self._agents))}.",
            )
        return await self._agents[name](claim, agent, emit)


async def _run_summarizer(claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
    """Summarize on the event loop, or in a thread with a stop flag if the text is long."""
    text, sentences = _summary_request(claim.input, agent.runtime.options)
    method = str(agent.runtime.options.get("method", "salience"))
    if method not in SUMMARY_METHODS:
        raise AgentFailed(
            "AGENT_MISCONFIGURED", f"The summarizer has no method {method!r}. It has: {', '.join(SUMMARY_METHODS)}."
        )
    if len(text) <= INLINE_CHARACTERS:
        summary = summarize(text, sentences, method)
    else:
        summary = await _in_thread(lambda is_stopped: summarize(text, sentences, method, is_stopped))
    for index, sentence in enumerate(summary.sentences):
        emit(f" {sentence}" if index else sentence)
    result = {"summary": " ".join(summary.sentences), "coverage": summary.coverage}
    # A performance of 0 is not allowed: it would be a failure.
    return AttemptOutcome("success", result, performance=max(0.01, summary.coverage))


def _summary_request(value: Any, options: JsonObject) -> tuple[str, int]:
    """Return the text and the number of sentences of an input: a string, or `{text, sentences?}`."""
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
    except SummaryCancelled:
        raise asyncio.CancelledError from None
    finally:
        stop.set()  # a cancelled coroutine does not end its thread; the flag does


class LibrarianAgent:
    """Answers questions from the notes. `tenant` owns the vault; tasks of other tenants fail.

    `find_rights` returns which folders may be searched for the submitter of a task, None for all. Folders that
    `is_excluded` are never searched.
    """

    def __init__(
        self,
        memory: SearchService,
        tenant: str,
        find_rights: Callable[[str, str], MaySearch | None],
        is_excluded: Callable[[str], bool],
    ) -> None:
        self._memory = memory
        self._tenant = tenant
        self._find_rights = find_rights
        self._is_excluded = is_excluded

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Answer a question: a string, or `{question or text, passages?}`. Result: `{answer, citations}`."""
        question, limit = _librarian_request(claim.input)
        if claim.tenant != self._tenant:
            raise AgentFailed("MEMORY_DENIED", "The notes belong to another tenant.")
        principal = Principal("librarian", "agent", frozenset(("read",)), claim.tenant)
        caller = MemoryCaller(principal, agent.agent_id, claim.task_id)
        rights = self._find_rights(claim.tenant, claim.submitted_by)

        def may_search(folder: str) -> bool:
            return not self._is_excluded(folder) and (rights is None or rights(folder))

        try:
            nothing_found = NOTHING_FOUND if await self._memory.is_complete() else NOTHING_FOUND_YET
            passages = await self._memory.passages(caller, question, limit, may_search)
        except StentorError as error:
            raise ProviderFailed("MEMORY_UNAVAILABLE", error.message) from None
        numbered = list(enumerate(passages, 1))
        answer = " ".join(f"{' '.join(passage.sentences)} [{number}]" for number, passage in numbered) or nothing_found
        emit(answer)
        result = {"answer": answer, "citations": [_citation(number, passage) for number, passage in numbered]}
        return AttemptOutcome("success", result, performance=max(0.01, round(term_coverage(passages, question), 4)))


def _librarian_request(value: Any) -> tuple[str, int]:
    question, limit = value, 3
    if isinstance(value, dict):
        question, limit = value.get("question", value.get("text")), value.get("passages", 3)
    if not isinstance(question, str) or not question.strip():
        raise AgentFailed("INPUT_INVALID", "The librarian needs a question: a string, or an object with 'question'.")
    if not isinstance(limit, int) or not 1 <= limit <= MAX_PASSAGES:
        raise AgentFailed("INPUT_INVALID", f"'passages' must be a number from 1 to {MAX_PASSAGES}.")
    return question, limit


def _citation(number: int, passage: Passage) -> JsonObject:
    return {
        "number": number,
        "path": passage.path,
        "title": passage.title,
        "heading": passage.heading,
        "passage": passage.text,
        "score": passage.score,
    }
