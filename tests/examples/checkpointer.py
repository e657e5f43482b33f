"""Tests the checkpointer with a service: python checkpointer.py URL KEY. It runs among the frameworks.

LangGraph's conformance tests come first. Then one graph with two branches keeps its state in the service and in memory.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from stentor_worker.integrations.langgraph import CheckpointError, StentorCheckpointer

THREAD = {"configurable": {"thread_id": "branches"}}


@checkpointer_test(name="stentor")
async def checkpointer() -> AsyncIterator[StentorCheckpointer]:
    saver = StentorCheckpointer(*sys.argv[1:], prefix="conformance/")
    yield saver
    saver.close()


def extend(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(text for write in writes for text in write)]


class State(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]
    last: str


def build(saver: BaseCheckpointSaver[str]) -> Any:
    """A graph of ten steps, the third of which asks a person."""
    graph = StateGraph(State)
    names = "abcdefghij"
    for name in names.replace("c", ""):
        graph.add_node(name, lambda _, name=name: {"said": [name], "last": name * 1_000})
    graph.add_node("c", lambda _: {"said": [interrupt("c?")]})
    for before, after in zip([START, *names], names, strict=False):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


def run(saver: BaseCheckpointSaver[str]) -> list[Any]:
    """Take up the thread from its middle as well; return what all its checkpoints hold."""
    graph = build(saver)
    graph.invoke({"said": ["start"]}, THREAD)
    graph.invoke(Command(resume="yes"), THREAD)
    middle = next(state for state in graph.get_state_history(THREAD) if state.next == ("f",))
    graph.invoke(None, graph.update_state(middle.config, {"said": ["edited"]}, as_node="e"))
    return [(state.values, state.next, state.metadata["step"]) for state in graph.get_state_history(THREAD)]


report = asyncio.run(validate(checkpointer))
sys.stdout.writelines(f"{name} {result.failures or 'passed'}\n" for name, result in report.results.items())
assert report.passed_all()

stored = StentorCheckpointer(*sys.argv[1:], prefix="branches/")
history = run(stored)
assert history == run(InMemorySaver())
assert history[0][0]["said"] == ["start", "a", "b", "yes", "d", "e", "edited", *"fghij"]
newest = stored.get_tuple(THREAD)
assert newest is not None
for value in ("first", "second"):  # of a task that runs again
    stored.put_writes(newest.config, [("last", value), ("__error__", value)], "task")
written = stored.get_tuple(THREAD)
assert written is not None
assert sorted(written.pending_writes or []) == [("task", "__error__", "second"), ("task", "last", "first")]

# A write whose value is not stored makes none of its task's writes count, and the thread is read as before.
stored.put_writes(newest.config, [("last", "short"), ("last", "long" * 100)], "incomplete")
stored._threads.remove("branches", [key for key, _ in stored._threads.scan("branches", "w/") if "incomplete/1/" in key])
with suppress(CheckpointError):
    refused = [("last", "short"), ("last", "x" * 3_000_000), ("last", "y" * 9_000_000)]
    stored.put_writes(newest.config, refused, "refused")
    raise AssertionError("9 MB were stored")
again = stored.get_tuple(THREAD)
assert again is not None
assert again.pending_writes == written.pending_writes

stored.prune(["branches"])
assert build(stored).get_state(THREAD).values == history[0][0]
assert len(list(stored.list(THREAD))) == 3  # the newest, and two from which its channel is built
