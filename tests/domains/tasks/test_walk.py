"""The whole path of one task, on both databases."""

from __future__ import annotations

from tests.conftest import World


async def test_a_worker_does_a_task_and_everything_is_recorded(world: World) -> None:
    agent = await world.register()
    task_id = await world.do(agent)
    task = await world.task(task_id)
    assert task["status"] == "completed"
    assert task["result"] == "hi"
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds == [
        "prompt_received",
        "routing_decision",
        "task_queued",
        "task_started",
        "task_completed",
        "learning_updated",
    ]
