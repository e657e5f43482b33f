"""The pages of tasks, as somebody without JavaScript sees them."""

from __future__ import annotations

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@requirement("dashboard.page-tasks")
async def test_the_list_shows_tasks_with_their_agents_and_filters_them(site: Site) -> None:
    agent = await site.world.register("ann")
    done = await site.world.do(agent)
    waiting = await site.world.submit()
    page = await site.read("/tasks")
    assert page.index(waiting) < page.index(done)
    assert "2 tasks" in page
    only = await site.part("/tasks", status="queued")
    assert waiting in only
    assert done not in only
    assert "<html" not in only
    assert done in await site.part("/tasks", q=done[:30])
    assert "No task matches" in await site.part("/tasks", status="failed")
    assert "No task matches" in await site.part("/tasks", q="\0%_")


@requirement("dashboard.page-tasks")
async def test_a_task_shows_its_decision_its_trail_and_its_result_as_markdown(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent, result="# Found\n\n<script>alert(1)</script> [x](javascript:alert(1))")
    page = await site.read(f"/tasks/{task_id}")
    assert "<h1>Found</h1>" in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'href="javascript:' not in page
    assert "0.70 × composite" in page
    assert "routing decision" in page
    await site.read("/tasks/none", 404)


@requirement("dashboard.page-tasks")
async def test_actions_go_through_the_gateway_with_the_key_that_signed_in(site: Site) -> None:
    await site.world.register("ann")
    task_id = await site.world.submit()
    assert (await site.send(f"/tasks/{task_id}/cancel", 403, key="READER")).status_code == 403
    assert (await site.world.task(task_id))["status"] == "queued"
    answer = await site.send(f"/tasks/{task_id}/cancel")
    assert answer.headers["location"] == f"/tasks/{task_id}?notice=cancelled"
    assert (await site.world.task(task_id))["status"] == "cancelled"
