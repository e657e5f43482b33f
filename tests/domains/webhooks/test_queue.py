"""The delivery queue: leases, epochs, order, retention, metrics and retry verdicts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stentor.core.clock import DAY, SECOND
from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.webhooks import model, outbox, store
from stentor.domains.webhooks.model import AttemptResult, Delivery, WebhookSubscription
from stentor.domains.webhooks.outbox import SubscriptionIndex, WebhookOutbox
from stentor.testing import FixedClock
from tests.domains.webhooks.conftest import Hooks
from tests.patience import soon
from tests.requirements import requirement

DELIVERY_COUNT = Sql("select count(*) from webhook_deliveries")
ATTEMPT_COUNT = Sql("select count(*) from webhook_attempts")


def run_log_event(task: str | None = None) -> RunLogEvent:
    return RunLogEvent.from_draft(EventDraft("task_started", "execution", "m"), "default", task, None, 0)


async def enqueue(db: Database, *tasks: str | None) -> list[Delivery]:
    deliveries = [outbox.new_delivery("hook", "task.started", run_log_event(task), 0) for task in tasks]

    def work(tx: Tx) -> None:
        for delivery in deliveries:
            store.insert_delivery(tx, delivery)

    await db.write(work)
    return deliveries


async def claim_due(db: Database, limit: int = 10, lease_us: int = SECOND) -> list[Delivery]:
    return await db.write(lambda tx: store.claim_due(tx, "hook", lease_us, limit))


SUCCESS, FAILURE = AttemptResult(0, 1, 200), AttemptResult(0, 1, 500)


@requirement("webhooks.order")
async def test_only_the_oldest_delivery_per_subject_is_claimed(db: Database, clock: FixedClock) -> None:
    deliveries = await enqueue(db, "a", "a", "b", None, None, "a")
    claimed = await claim_due(db)
    assert [delivery.delivery_id for delivery in claimed] == [deliveries[n].delivery_id for n in (0, 2, 3, 4)]
    assert await claim_due(db) == []
    verdict = model.decide_delivery(claimed[0], FAILURE, clock.now(), 0.0)
    assert await db.write(lambda tx: store.record_attempt(tx, claimed[0], FAILURE, verdict))
    clock.advance(seconds=4)
    assert await claim_due(db) == []
    clock.advance(seconds=2)
    (retried,) = await claim_due(db)
    assert (retried.delivery_id, retried.attempts, retried.epoch) == (deliveries[0].delivery_id, 1, 2)

    def record_and_release(tx: Tx) -> bool:
        assert store.record_attempt(tx, retried, SUCCESS, model.decide_delivery(retried, SUCCESS, tx.now, 0.0))
        return store.release_next(tx, retried)

    assert await db.write(record_and_release)
    assert [delivery.delivery_id for delivery in await claim_due(db)] == [deliveries[1].delivery_id]


@requirement("webhooks.order")
async def test_blocked_deliveries_do_not_hold_up_other_subjects(db: Database) -> None:
    deliveries = await enqueue(db, *["a"] * 50, "b")
    assert [delivery.delivery_id for delivery in await claim_due(db, 1)] == [deliveries[0].delivery_id]
    assert [delivery.delivery_id for delivery in await claim_due(db, 1)] == [deliveries[-1].delivery_id]
    assert await claim_due(db, 100) == []


@requirement("webhooks.several-processes")
async def test_attempt_with_an_older_epoch_is_rejected(db: Database) -> None:
    await enqueue(db, None)
    (first,) = await claim_due(db)
    assert await db.write(lambda tx: store.requeue(tx, [first])) == 1
    (second,) = await claim_due(db)
    verdict = model.decide_delivery(first, SUCCESS, 0, 0.0)
    assert not await db.write(lambda tx: store.record_attempt(tx, first, SUCCESS, verdict))
    assert await db.write(lambda tx: store.requeue(tx, [first])) == 0
    assert await db.write(lambda tx: store.record_attempt(tx, second, SUCCESS, verdict))


@requirement("webhooks.several-processes", "webhooks.at-least-once")
async def test_concurrent_claims_are_disjoint_and_expired_leases_are_listed(db: Database, clock: FixedClock) -> None:
    deliveries = await enqueue(db, *[None] * 40)
    other = Database(db.driver)
    batches = await asyncio.gather(*(claim_due(database, 3) for database in (db, other) * 10))
    other.close()
    claimed_ids = [delivery.delivery_id for batch in batches for delivery in batch]
    assert len(claimed_ids) == len(set(claimed_ids))
    assert set(claimed_ids) <= {delivery.delivery_id for delivery in deliveries}
    assert await db.read(lambda tx: store.list_lease_expired(tx, tx.now, 100)) == []
    clock.advance(seconds=2)
    assert len(await db.read(lambda tx: store.list_lease_expired(tx, tx.now, 100))) == len(claimed_ids)


@requirement("webhooks.several-processes", "webhooks.at-least-once")
async def test_a_delivery_of_a_dead_process_is_not_held_for_as_long_as_the_clock_is_set_back(hooks: Hooks) -> None:
    world, dispatcher = hooks.world, hooks.world.kernel.webhooks.dispatcher
    await dispatcher.stop()
    db = world.kernel.infra.db
    await enqueue(db, None)
    assert len(await claim_due(db, lease_us=dispatcher.lease_us)) == 1
    await dispatcher.poll()
    waiting = outbox.new_delivery("hook", "task.started", run_log_event(), world.clock.now())
    await db.write(lambda tx: store.insert_delivery(tx, waiting))
    count = Sql("select count(*) from webhook_deliveries where status = 'sending'")
    for seconds, sending in ((-3_600, 1), (dispatcher.lease_us // SECOND, 1), (1, 0)):
        world.clock.advance(seconds=seconds)
        await dispatcher.poll()
        assert (await db.read(lambda tx: tx.rows(count)))[0][0] == sending
        assert await db.read(lambda tx: store.has_due(tx, "hook"))


async def test_database_rejects_invalid_delivery_transition(db: Database) -> None:
    await enqueue(db, None)
    with pytest.raises(Exception, match="does not make this move"):
        await db.write(
            lambda tx: tx.run(Sql("update webhook_deliveries set status = 'failed', ended_at = 1, attempts = 1"))
        )


@requirement("webhooks.one-commit")
async def test_delivery_is_written_with_its_event_only_if_subscribed(db: Database) -> None:
    index, notified = SubscriptionIndex(), []
    runlog = RunLog(Hub())
    runlog.append_hooks.append(WebhookOutbox(index, lambda webhook_ids: notified.append(set(webhook_ids))).record)

    def drafts() -> list[EventDraft]:
        return [EventDraft("task_started", "execution", "m"), EventDraft("task_queued", "execution", "m")]

    async def append(tenant: str) -> int:
        await db.write(lambda tx: runlog.append(tx, tenant, drafts(), task_id="t"))
        return int(await db.read(lambda tx: tx.rows(DELIVERY_COUNT)[0][0]))

    assert await append("default") == 0
    index.replace_all([subscription("default", ["task.started"])])
    assert await append("other") == 0
    assert await append("default") == 1
    assert notified == [{"hook"}]

    def append_and_fail(tx: Tx) -> None:
        runlog.append(tx, "default", drafts(), task_id="t")
        raise StoreUnavailable("undone")

    with pytest.raises(StoreUnavailable):
        await db.write(append_and_fail)
    assert await db.read(lambda tx: tx.rows(DELIVERY_COUNT)) == [(1,)]
    assert notified == [{"hook"}]


def subscription(tenant: str, events: list[str]) -> WebhookSubscription:
    return WebhookSubscription("hook", tenant, "http://x", events, "", True, None, "s", None, None, 0, "me", 0, 0)


@requirement("webhooks.retention")
async def test_purge_deletes_old_ended_deliveries_but_not_waiting_ones(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await hooks.wait_for_delivery(webhook["id"], status="delivered")
    hooks.receiver.statuses = [500]
    await hooks.world.register("two")
    await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    dispatcher = hooks.world.kernel.webhooks.dispatcher
    assert await dispatcher.purge() == 0
    assert dispatcher._watch is not None
    dispatcher._watch.cancel()  # Otherwise the waiting delivery is retried.
    hooks.world.clock.advance(days=31)
    assert await dispatcher.purge() == 1
    assert [d["status"] for d in await hooks.deliveries(webhook["id"])] == ["waiting"]
    assert await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(ATTEMPT_COUNT)) == [(1,)]
    await hooks.request_json("PATCH", f"/{webhook['id']}", json={"enabled": False})
    assert await dispatcher.purge() == 1, "a disabled webhook's delivery is purged"


@requirement("webhooks.manage")
async def test_deleting_a_webhook_deletes_its_delivery_log(hooks: Hooks) -> None:
    webhook, other = await hooks.subscribe("agent.registered"), await hooks.subscribe("agent.registered")
    await hooks.world.register()
    for each in (webhook, other):
        await hooks.wait_for_delivery(each["id"], status="delivered")
    await hooks.request_json("DELETE", f"/{webhook['id']}")

    async def only_other_is_left() -> bool:
        return await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(DELIVERY_COUNT)) == [(1,)]

    await soon(only_other_is_left)
    assert await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(ATTEMPT_COUNT)) == [(1,)]


@requirement("webhooks.observable")
async def test_metrics_and_health_report_backlog_and_deliveries(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await hooks.wait_for_delivery(webhook["id"], status="delivered")
    hooks.receiver.statuses = [500]
    await hooks.world.register("two")
    await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    hooks.world.clock.advance(seconds=3)

    async def counted() -> dict[str, Any] | None:
        response = await hooks.world.admin.get("/metrics")
        families = text_string_to_metric_families(response.text)
        found = {each.name + str(each.labels or ""): each.value for family in families for each in family.samples}
        # Attempts are counted after their rows are stored.
        return found if found["stentor_webhook_attempts_total{'result': 'retried'}"] == 1 else None

    samples = await soon(counted)
    assert samples["stentor_webhook_backlog"] == 1
    assert samples["stentor_webhook_oldest_seconds"] == 3
    assert samples["stentor_webhook_attempts_total{'result': 'delivered'}"] == 1
    assert samples["stentor_webhooks{'state': 'enabled'}"] == 1
    assert samples["stentor_webhooks{'state': 'disabled'}"] == 0
    health = (await hooks.world.admin.get("/api/v1/health/detailed")).json()["components"]["webhooks"]
    assert health["detail"] == "can be delivered"


@pytest.mark.parametrize(
    ("attempts", "result", "status", "delay_s"),
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
def test_retry_verdict_by_attempts_and_response(
    attempts: int, result: AttemptResult, status: str, delay_s: int | None
) -> None:
    delivery = msgspec.structs.replace(
        outbox.new_delivery("hook", "task.started", run_log_event(), 0), attempts=attempts
    )
    verdict = model.decide_delivery(delivery, result, 1000, 0.0)
    assert verdict.status == status
    assert (verdict.disable_reason is not None) == (status == "failed")
    if delay_s is not None:
        assert verdict.due_at == 1000 + delay_s * SECOND
        latest = model.decide_delivery(delivery, result, 1000, 1.0).due_at
        assert verdict.due_at <= latest <= 1000 + delay_s * SECOND * 1.1 + 1
