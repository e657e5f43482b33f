"""A clock that is set back by an hour: what was due or limited by it goes on within seconds, not an hour later."""

from __future__ import annotations

from stentor.core.clock import DAY
from stentor.core.errors import ProviderUnreachable
from stentor.domains.llm.calls.circuit_breaker import COOLDOWN_SECONDS, FAILURE_THRESHOLD, CircuitBreaker
from stentor.domains.llm.providers import Provider
from stentor.domains.webhooks import store
from stentor.testing import FixedClock
from tests.conftest import World
from tests.domains.execution.test_limits import claim, end, look
from tests.domains.webhooks.conftest import Hooks, hooks, receiver
from tests.requirements import requirement

__all__ = ["hooks", "receiver"]  # fixtures
HOUR = 3600


async def set_back(world: World) -> None:
    world.clock.advance(seconds=-HOUR)
    await world.kernel.webhooks.dispatcher.poll()
    await world.kernel.tasks.parked_tasks.tick()


@requirement("webhooks.retries")
async def test_the_retry_of_a_delivery_does_not_wait_for_the_hour_to_come_again(hooks: Hooks) -> None:
    hooks.receiver.statuses = [500]
    webhook = await hooks.subscribe("task.submitted")
    await hooks.world.register()
    await hooks.world.submit()
    await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    await set_back(hooks.world)
    await hooks.advance_clock(4)
    assert (await hooks.deliveries(webhook["id"]))[0]["status"] == "waiting"
    await hooks.advance_clock(2)
    await hooks.wait_for_delivery(webhook["id"], status="delivered", attempts=2)


@requirement("webhooks.retries")
async def test_a_pause_of_a_webhook_lasts_a_day_at_most_when_the_clock_is_set_back(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("task.submitted")
    db, ahead = hooks.world.kernel.infra.db, 30 * DAY
    await db.write(lambda tx: store.hold_deliveries(tx, webhook["id"], tx.now + ahead))
    await set_back(hooks.world)
    found = await db.read(lambda tx: store.find(tx, "default", webhook["id"]))
    assert found is not None
    assert found.hold_until == hooks.world.clock.now() + DAY


@requirement("limits.rate")
async def test_the_starts_of_the_hour_that_comes_again_do_not_use_a_rate_up(world: World) -> None:
    agent = await world.register()
    rate = {"key": "mail", "max": 1, "per_seconds": 60}
    first, second = await world.submit(limit=rate), await world.submit(limit=rate)
    (started,) = await claim(world, agent)
    assert started["task_id"] == first
    await end(world, started)  # else its lease may end before the second one is claimed
    await set_back(world)
    await look(world)
    assert await claim(world, agent) == []  # not more than the rate either
    world.clock.advance(seconds=60)
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == [second]


def test_an_open_circuit_closes_after_its_cooldown(clock: FixedClock) -> None:
    breaker, provider = CircuitBreaker(clock), Provider("acme", "openai", "https://acme.test")
    for _ in range(FAILURE_THRESHOLD):
        breaker.after_call("default", provider, ProviderUnreachable("It is down."))
    clock.advance(seconds=-HOUR)
    assert breaker.is_open("default", provider)
    clock.advance(seconds=COOLDOWN_SECONDS + 1)
    assert not breaker.is_open("default", provider)
