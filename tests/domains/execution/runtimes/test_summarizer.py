"""The builtin summarizer: through the API, and its rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.execution.runtimes.builtin import INLINE_CHARACTERS
from stentor.domains.execution.runtimes.summarizer import (
    MAX_CHARACTERS_READ,
    SummaryCancelled,
    split_sentences,
    summarize,
)
from tests.conftest import MakeWorld, World
from tests.domains.streams import at_rest
from tests.requirements import requirement

TEXT = (
    "Routers choose agents for tasks. The weather was fine on that day. Routers learn which agents finish tasks well. "
    "Somebody had tea. Agents that finish tasks well are chosen by routers more often."
)


async def task_of(world: World, value: Any) -> dict[str, Any]:
    return await world.ended(await world.submit(input=value, required_capabilities=["summarize"], type="summarize"))


@requirement("execution.builtin-summarizer")
@pytest.mark.parametrize("value", [TEXT, {"text": TEXT, "sentences": 3}, {"text": f"{TEXT} " * 60, "sentences": 2}])
async def test_a_summary_is_made_of_the_texts_own_sentences_without_a_model(make_world: MakeWorld, value: Any) -> None:
    world = await make_world(SERVICE_BUILTIN_AGENTS="true")
    task = await task_of(world, value)
    assert (task["status"], task["outcome_class"]) == ("completed", "success")
    summary = task["result"]["summary"]
    assert 0 < len(summary) < len(TEXT)
    assert all(sentence in TEXT for sentence in split_sentences(summary))
    assert 0 < task["result"]["coverage"] <= 1


@pytest.mark.parametrize(
    "value", ["", "  ", 7, None, [], {}, {"text": 1}, {"text": "x", "sentences": 0}, {"text": "x", "sentences": "2"}]
)
async def test_an_input_without_a_text_fails_the_task(make_world: MakeWorld, value: Any) -> None:
    world = await make_world(SERVICE_BUILTIN_AGENTS="true")
    task = await task_of(world, value)
    assert (task["status"], task["error"]["code"], task["outcome_class"]) == (
        "failed",
        "INPUT_INVALID",
        "agent_failure",
    )


@requirement("execution.cancel-reaches-runtime")
async def test_a_cancel_stops_the_work_on_a_long_text(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_BUILTIN_AGENTS="true")
    words = " ".join(f"word{i % 977}x{i % 31}" for i in range(400))
    long = ". ".join(f"Sentence {'abc'[i % 3] * (i % 40 + 3)} {words[i : i + 200]}" for i in range(2000))
    assert len(long) > INLINE_CHARACTERS
    task_id = await world.submit(input={"text": long, "sentences": 50}, required_capabilities=["summarize"])
    cancelled = await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
    assert cancelled.status_code == 200
    task = await world.ended(task_id)
    assert (task["status"], task["result"]) == ("cancelled", None)
    await at_rest(world)


@given(st.text(max_size=400), st.integers(1, 10), st.sampled_from(["salience", "lead"]))
def test_a_summary_has_at_most_so_many_sentences_all_of_them_in_their_order(text: str, count: int, method: str) -> None:
    summary = summarize(text, count, method)
    sentences = split_sentences(text)
    assert len(summary.sentences) <= count
    assert 0 <= summary.coverage <= 1
    rest = iter(sentences)
    assert all(sentence in rest for sentence in summary.sentences)


def test_markup_and_code_are_no_sentences() -> None:
    fenced = "```python\ncode. here.\n```"
    text = f"# Title\n\nOne **bold** sentence. [Link](http://x) too.\n\n{fenced}\n\n| a | b |\n- item one\n"
    assert split_sentences(text) == ["Title", "One bold sentence.", "Link too.", "item one"]


@requirement("execution.builtin-summarizer")
@pytest.mark.parametrize(
    "fragment", ["[", "![", "[](", "[a](b", "[a](b(", "[](()", "[]()(", "(", "> [", "---\n", "```\n~~~\n"]
)
def test_splitting_takes_linear_time(fragment: str) -> None:
    # With quadratic time the call would not finish.
    assert len(split_sentences(fragment * 200_000)) < 10


def test_the_text_of_a_link_stays_and_its_address_does_not() -> None:
    text = "See [the page](http://x/y_(z)) and [1, [two](<http://x> 'a title'). ![Picture](a.png) [Not closed](http://x"
    assert split_sentences(text) == ["See the page and [1, two.", "Picture [Not closed](http://x"]


@pytest.mark.parametrize("method", ["salience", "lead"])
def test_of_a_very_long_text_only_the_beginning_is_read(method: str) -> None:
    summary = summarize("An early sentence. " + "a " * 5 * MAX_CHARACTERS_READ, 2, method)
    assert summary.sentences[0] == "An early sentence."
    assert sum(map(len, summary.sentences)) <= MAX_CHARACTERS_READ


def test_the_work_stops_when_nobody_waits() -> None:
    with pytest.raises(SummaryCancelled):
        summarize(TEXT, 2, is_cancelled=lambda: True)
