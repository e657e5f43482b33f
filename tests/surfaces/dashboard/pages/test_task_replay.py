"""The page that replays a run: the verdict of each step, another agent and model, and what it says of other runs."""

from __future__ import annotations

import html
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.llm.conftest import Gate
from tests.domains.llm.conftest import make_llm as make_llm
from tests.domains.llm.conftest import upstream as upstream
from tests.domains.llm.test_tool_loop import Script, agent_body, get, serving, think, thinker
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@pytest.fixture
async def replaying(make_llm: Gate, make_board: Any) -> Any:
    """Pages over a world whose model is scripted."""
    made = Site(await make_board(await make_llm(SERVICE_OUTBOUND_ALLOW="127.0.0.1")))
    yield made
    for browser in made.browsers.values():
        await browser.aclose()


@requirement("dashboard.page-replay")
async def test_a_run_is_replayed_with_its_agent_and_with_another_one(replaying: Site, upstream: Upstream) -> None:
    world: World = replaying.world
    async with serving() as web:
        await thinker(world, web)
        Script(upstream, get(web), "It is <b>42</b>.")
        task_id = (await think(world))["task_id"]
        assert f'href="/tasks/{task_id}/replay"' in await replaying.read(f"/tasks/{task_id}")
        same = await replaying.read(f"/tasks/{task_id}/replay")
        for text in ("The run is the same as far as it was recorded.", "model 1/tool 1", "It is &lt;b&gt;42"):
            assert text in same
        changed = await world.register(**agent_body(web, system_prompt="Think twice.") | {"name": "another"})
        differs = await replaying.read(f"/tasks/{task_id}/replay", agent=changed, model="openai/sea-small")
        for text in ("The run differs.", "instructions changed", "openai/sea-large before, openai/sea-small now"):
            assert text in differs
        assert (differs.count("instructions changed"), "As above." in differs) == (1, True)
        assert f"stentor task replay {task_id} --agent {changed} --model openai/sea-small" in differs
        assert (len(upstream.asked), len(web.requests)) == (2, 1)
        odd = html.unescape(await replaying.read(f"/tasks/{task_id}/replay", agent=changed, model="a; b"))
        assert f"stentor task replay {task_id} --agent {changed} --model 'a; b'" in odd
        reader = await replaying.read(f"/tasks/{task_id}/replay", key="READER")
        assert ("as far as it was recorded" in reader, ">another</option>" in reader) == (True, False)


@requirement("dashboard.page-replay")
async def test_what_cannot_be_replayed_here_says_why_and_what_to_do(site: Site) -> None:
    task_id = await site.world.do(await site.world.register())
    page = await site.read(f"/tasks/{task_id}/replay")
    assert f'<code class="copy">stentor-worker replay MODULE:WORKER {task_id}</code>' in page
    assert ("<code>stentor task replay" in page, 'name="model"' in page) == (False, False)
    assert "There is no agent &#39;nobody&#39;" in await site.read(f"/tasks/{task_id}/replay?agent=nobody")
    await site.read(f"/tasks/{task_id}/replay", 404, key="OTHER")
    await site.read("/tasks/none/replay", 404)
