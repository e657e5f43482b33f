"""The page that shows agents side by side, and how long their tasks take."""

from __future__ import annotations

import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


def cells(page: str, row: str) -> list[str]:
    """The texts of a row."""
    _, _, rest = page.partition(f'<th scope="row">{row}</th>')
    return [cell.partition(">")[2].partition("</td>")[0] for cell in rest.partition("</tr>")[0].split("<td")[1:]]


async def do_task(site: Site, agent_id: str, capability: str, seconds: int, *, well: bool = True) -> None:
    task_id = await site.world.submit(required_capabilities=[capability])
    claim = await site.world.claim(agent_id, lease_seconds=60)
    site.world.clock.advance(seconds=seconds)
    verb, body = ("complete", {"result": 1}) if well else ("fail", {"error": {"message": "no"}})
    answer = await site.world.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json={"epoch": claim["epoch"], **body})
    assert answer.status_code == 200, answer.text


@requirement("dashboard.page-agent-comparison")
async def test_agents_stand_side_by_side_with_their_results_and_durations(site: Site) -> None:
    ann = await site.world.register("ann", capabilities=["one"])
    bob = await site.world.register("bob", capabilities=["two"])
    for seconds in (1, 2, 3, 40):
        await do_task(site, ann, "one", seconds)
    await do_task(site, bob, "two", 7, well=False)
    page = await site.read("/agents/compare", agent=[ann, bob])
    assert page.index(">ann<") < page.index(">bob<")
    assert [cell.strip() for cell in cells(page, "Success")] == ["100%", "0%"]
    assert cells(page, "Quality: echo") == ["100%", "0%"]
    assert cells(page, "Duration, median") == ["2.0 s", "7.0 s"]
    assert cells(page, "Duration, p95") == ["40.0 s", "7.0 s"]
    own = await site.read(f"/agents/{ann}")
    assert "p95" in own


@requirement("dashboard.page-agent-comparison")
async def test_the_prompt_of_a_model_agent_is_shown_without_secrets(site: Site) -> None:
    prompt = "You are a sailor & <b>wise</b>. Send api_key: sk-abcdefghijklmnopqrstuvwx"
    runtime = {"kind": "llm", "options": {"model": "openai/sea-large", "system_prompt": prompt}}
    ann = await site.world.register("ann", runtime=runtime)
    bob = await site.world.register("bob")
    for page in (await site.read(f"/agents/{ann}"), await site.read("/agents/compare", agent=[ann, bob])):
        assert "You are a sailor &amp; &lt;b&gt;wise&lt;/b&gt;." in page
        assert "abcdefghijklmnopqrstuvwx" not in page
    assert ">Prompt<" in page
    carl = await site.world.register("carl")
    assert ">Prompt<" not in await site.read("/agents/compare", agent=[bob, carl])


@requirement("dashboard.page-agent-comparison")
@pytest.mark.parametrize("count", [0, 1, 5])
async def test_two_to_four_agents_are_compared(site: Site, count: int) -> None:
    ids = [await site.world.register(f"agent-{n}") for n in range(count)]
    page = await site.read("/agents/compare", 400, agent=ids)
    assert "Select two to four agents" in page
    assert "<h1>Request rejected</h1>" in page
    listed = await site.read("/agents")
    assert ("Compare</button>" in listed) == (count > 1)
