"""An agent that answers with sentences of the vault's own notes, each with where it stands. Needs no model."""

from __future__ import annotations

from typing import Any, Protocol

from stentor.auth.principal import Principal
from stentor.core.errors import StentorError
from stentor.domains.execution.model import AgentFailed, Outcome, ProviderFailed
from stentor.domains.execution.runtimes import Emit
from stentor.domains.memory.passages import Passage, covered
from stentor.domains.memory.service import Caller
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Claim

MAX_PASSAGES = 10
NOTHING = "The notes say nothing about this."


class Memory(Protocol):
    """What it looks in."""

    async def passages(self, caller: Caller, question: str, most: int) -> list[Passage]:
        """The best passages first."""
        ...


class Librarian:
    """`tenant` is the one whose vault it is; tasks of others are refused."""

    def __init__(self, memory: Memory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant

    async def run(self, claim: Claim, agent: Agent, emit: Emit) -> Outcome:
        """Input: a question, or `{question or text, passages?}`. Result: `{answer, citations}`; [1] is the first."""
        question, most = _request(claim.input)
        if claim.tenant != self._tenant:
            raise AgentFailed("MEMORY_DENIED", "The notes belong to another tenant.")
        asking = Principal("librarian", "agent", frozenset(("read",)), claim.tenant)
        try:
            found = await self._memory.passages(Caller(asking, agent.agent_id, claim.task_id), question, most)
        except StentorError as error:
            raise ProviderFailed("MEMORY_UNAVAILABLE", error.message) from None
        answer = " ".join(f"{' '.join(one.sentences)} [{n}]" for n, one in enumerate(found, 1)) or NOTHING
        emit(answer)
        result = {"answer": answer, "citations": [_citation(n, one) for n, one in enumerate(found, 1)]}
        return Outcome("success", result, performance=max(0.01, round(covered(found, question), 4)))


def _request(value: Any) -> tuple[str, int]:
    question, most = value, 3
    if isinstance(value, dict):
        question, most = value.get("question", value.get("text")), value.get("passages", 3)
    if not isinstance(question, str) or not question.strip():
        raise AgentFailed("INPUT_INVALID", "The librarian needs a question: a string, or an object with 'question'.")
    if not isinstance(most, int) or not 1 <= most <= MAX_PASSAGES:
        raise AgentFailed("INPUT_INVALID", f"'passages' must be a number from 1 to {MAX_PASSAGES}.")
    return question, most


def _citation(number: int, passage: Passage) -> dict[str, Any]:
    return {
        "number": number,
        "path": passage.path,
        "title": passage.title,
        "heading": passage.heading,
        "passage": passage.text,
        "score": passage.score,
    }
