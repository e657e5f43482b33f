"""The queue as rows: leases, epochs, order, what other processes and the purge do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stentor.core.clock import DAY, SECOND
from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import StoreUnavailable
from stentor.core.live import Hub
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.webhooks import model, outbox, store
from stentor.domains.webhooks.model import AttemptResult, Delivery, WebhookSubscription
from stentor.domains.webhooks.outbox import SubscriptionIndex, WebhookOutbox
from stentor.testing import FixedClock
from tests.domains.webhooks.conftest import Hooks
from tests.patience import soon
from tests.requirements import requirement

COUNT = Sql("select count(*) from webhook_deliveries")
RETENTION = Sql("select count(*) from webhook_attempts")


def event(task: str | None = None) -> RunLogEvent:
    return RunLogEvent.from_draft(EventDraft("task_started", "execution", "m"), "default", task, None, 0)


async def queued(db: Database, *tasks: str | None) -> list[Delivery]:
    made = [outbox.new_delivery("hook", "task.started", event(task), 0) for task in tasks]

    def work(tx: Tx) -> None:
        for one in made:
            store.insert_delivery(tx, one)

    await db.write(work)
    return made


async def claimed(db: Database, most: int = 10, lease: int = SECOND) -> list[Delivery]:
    return await db.write(lambda tx: store.claim_due(tx, "hook", lease, most))


OK, BAD = AttemptResult(0, 1, 200), AttemptResult(0, 1, 500)


@requirement("webhooks.order")
async def test_only_the_oldest_open_one_of_a_subject_is_taken(db: Database, clock: FixedClock) -> None:
    made = await queued(db, "a", "a", "b", None, None, "a")
    taken = await claimed(db)
    assert [one.delivery_id for one in taken] == [made[n].delivery_id for n in (0, 2, 3, 4)]
    assert await claimed(db) == []
    verdict = model.decide_delivery(taken[0], BAD, clock.now(), 0.0)
    assert await db.write(lambda tx: store.record_attempt(tx, taken[0], BAD, verdict))
    clock.advance(seconds=4)
    assert await claimed(db) == []
    clock.advance(seconds=2)
    (again,) = await claimed(db)
    assert (again.delivery_id, again.attempts, again.epoch) == (made[0].delivery_id, 1, 2)

    def done(tx: Tx) -> bool:
        assert store.record_attempt(tx, again, OK, model.decide_delivery(again, OK, tx.now, 0.0))
        return store.release_next(tx, again)

    assert await db.write(done)
    assert [one.delivery_id for one in await claimed(db)] == [made[1].delivery_id]


@requirement("webhooks.order")
async def test_many_blocked_ones_do_not_stand_in_the_way(db: Database) -> None:
    made = await queued(db, *["a"] * 50, "b")
    assert [one.delivery_id for one in await claimed(db, 1)] == [made[0].delivery_id]
    assert [one.delivery_id for one in await claimed(db, 1)] == [made[-1].delivery_id]
    assert await claimed(db, 100) == []


@requirement("webhooks.several-processes")
async def test_an_outcome_counts_only_under_the_epoch_of_its_claim(db: Database) -> None:
    await queued(db, None)
    (first,) = await claimed(db)
    assert await db.write(lambda tx: store.requeue(tx, [first])) == 1
    (second,) = await claimed(db)
    verdict = model.decide_delivery(first, OK, 0, 0.0)
    assert not await db.write(lambda tx: store.record_attempt(tx, first, OK, verdict))
    assert await db.write(lambda tx: store.requeue(tx, [first])) == 0
    assert await db.write(lambda tx: store.record_attempt(tx, second, OK, verdict))


@requirement("webhooks.several-processes", "webhooks.at-least-once")
async def test_two_takers_never_have_the_same_delivery_and_an_ended_lease_is_found(
    db: Database, clock: FixedClock
) -> None:
    made = await queued(db, *[None] * 40)
    other = Database(db.driver)
    found = await asyncio.gather(*(claimed(one, 3) for one in (db, other) * 10))
    other.close()
    taken = [one.delivery_id for batch in found for one in batch]
    assert len(taken) == len(set(taken))
    assert set(taken) <= {one.delivery_id for one in made}
    assert await db.read(lambda tx: store.list_lease_expired(tx, tx.now, 100)) == []
    clock.advance(seconds=2)
    assert len(await db.read(lambda tx: store.list_lease_expired(tx, tx.now, 100))) == len(taken)


async def test_the_schema_refuses_a_move_that_is_none(db: Database) -> None:
    await queued(db, None)
    with pytest.raises(Exception, match="does not make this move"):
        await db.write(
            lambda tx: tx.run(Sql("update webhook_deliveries set status = 'failed', ended_at = 1, attempts = 1"))
        )


@requirement("webhooks.one-commit")
async def test_without_a_subscription_nothing_is_written_and_with_one_it_shares_the_transaction(db: Database) -> None:
    view, told = SubscriptionIndex(), []
    runlog = RunLog(Hub())
    runlog.append_hooks.append(WebhookOutbox(view, lambda found: told.append(set(found))).record)

    def drafts() -> list[EventDraft]:
        return [EventDraft("task_started", "execution", "m"), EventDraft("task_queued", "execution", "m")]

    async def append(tenant: str) -> int:
        await db.write(lambda tx: runlog.append(tx, tenant, drafts(), task_id="t"))
        return int(await db.read(lambda tx: tx.rows(COUNT)[0][0]))

    assert await append("default") == 0
    view.replace_all([subscription("default", ["task.started"])])
    assert await append("other") == 0
    assert await append("default") == 1
    assert told == [{"hook"}]

    def undone(tx: Tx) -> None:
        runlog.append(tx, "default", drafts(), task_id="t")
        raise StoreUnavailable("undone")

    with pytest.raises(StoreUnavailable):
        await db.write(undone)
    assert await db.read(lambda tx: tx.rows(COUNT)) == [(1,)]
    assert told == [{"hook"}]


def subscription(tenant: str, events: list[str]) -> WebhookSubscription:
    return WebhookSubscription("hook", tenant, "http://x", events, "", True, None, "s", None, None, 0, "me", 0, 0)


@requirement("webhooks.retention")
async def test_what_ended_long_ago_is_forgotten_and_what_waits_is_not(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await hooks.until(made["id"], status="delivered")
    hooks.receiver.statuses = [500]
    await hooks.world.register("two")
    await hooks.until(made["id"], status="waiting", attempts=1)
    carrier = hooks.world.kernel.webhooks.dispatcher
    assert await carrier.purge() == 0
    assert carrier._watch is not None
    carrier._watch.cancel()  # else the one that waits is tried again
    hooks.world.clock.advance(days=31)
    assert await carrier.purge() == 1
    assert [d["status"] for d in await hooks.deliveries(made["id"])] == ["waiting"]
    assert await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(RETENTION)) == [(1,)]
    await hooks.do("PATCH", f"/{made['id']}", json={"enabled": False})
    assert await carrier.purge() == 1, "nobody waits for it"


@requirement("webhooks.manage")
async def test_the_log_of_a_deleted_webhook_is_deleted_too(hooks: Hooks) -> None:
    made, other = await hooks.subscribe("agent.registered"), await hooks.subscribe("agent.registered")
    await hooks.world.register()
    for one in (made, other):
        await hooks.until(one["id"], status="delivered")
    await hooks.do("DELETE", f"/{made['id']}")

    async def one_left() -> bool:
        return await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(COUNT)) == [(1,)]

    await soon(one_left)
    assert await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(RETENTION)) == [(1,)]


@requirement("webhooks.observable")
async def test_metrics_and_health_tell_the_backlog_and_what_was_delivered(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await hooks.until(made["id"], status="delivered")
    hooks.receiver.statuses = [500]
    await hooks.world.register("two")
    await hooks.until(made["id"], status="waiting", attempts=1)
    hooks.world.clock.advance(seconds=3)
    answer = await hooks.world.admin.get("/metrics")
    samples: dict[str, Any] = {
        sample.name + str(sample.labels or ""): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["stentor_webhook_backlog"] == 1
    assert samples["stentor_webhook_oldest_seconds"] == 3
    assert samples["stentor_webhook_attempts_total{'result': 'delivered'}"] == 1
    assert samples["stentor_webhook_attempts_total{'result': 'retried'}"] == 1
    assert samples["stentor_webhooks{'state': 'enabled'}"] == 1
    health = (await hooks.world.admin.get("/api/v1/health/detailed")).json()["components"]["webhooks"]
    assert health["detail"] == "1 enabled, 0 disabled, 1 waiting"


@pytest.mark.parametrize(
    ("attempts", "reply", "status", "wait"),
    [
        (0, AttemptResult(0, 1, 204), "delivered", None),
        (0, AttemptResult(0, 1, 199), "waiting", 5),
        (1, AttemptResult(0, 1, 304), "waiting", 300),
        (0, AttemptResult(0, 1, None, "gone"), "waiting", 5),
        (0, AttemptResult(0, 1, 429, retry_after=60 * SECOND), "waiting", 60),
        (2, AttemptResult(0, 1, 503, retry_after=60 * SECOND), "waiting", 1800),
        (0, AttemptResult(0, 1, 429, retry_after=99 * DAY), "waiting", 86_400),
        (8, AttemptResult(0, 1, 500), "waiting", 86_400),
        (9, AttemptResult(0, 1, 500), "failed", None),
        (0, AttemptResult(0, 1, 410), "failed", None),
    ],
)
def test_what_becomes_of_a_delivery(attempts: int, reply: AttemptResult, status: str, wait: int | None) -> None:
    one = msgspec.structs.replace(outbox.new_delivery("hook", "task.started", event(), 0), attempts=attempts)
    verdict = model.decide_delivery(one, reply, 1000, 0.0)
    assert verdict.status == status
    assert (verdict.disable_reason is not None) == (status == "failed")
    if wait is not None:
        assert verdict.due_at == 1000 + wait * SECOND
        latest = model.decide_delivery(one, reply, 1000, 1.0).due_at
        assert verdict.due_at <= latest <= 1000 + wait * SECOND * 1.1 + 1
