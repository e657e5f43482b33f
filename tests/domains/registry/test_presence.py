"""Who is online when clocks jump: in memory, without a service."""

from __future__ import annotations

import pytest

from stentor.core.clock import SECOND
from stentor.domains.registry.model import Agent, Runtime
from stentor.domains.registry.presence import MAX_FAILURES, Presence
from stentor.testing import FixedClock
from tests.domains.agents import agent
from tests.requirements import requirement

INTERVAL, HOUR = 60, 3_600
Known = tuple[Presence, FixedClock, Agent]


@pytest.fixture
def known() -> Known:
    """A worker that was seen now; its presence knows it for longer than an interval."""
    clock = FixedClock()
    presence = Presence(clock, INTERVAL, lambda agent_id, at, left=False: None)
    clock.advance(seconds=2 * INTERVAL)
    worker = agent("worker", runtime=Runtime(kind="worker"))
    presence.record_seen(worker.agent_id)
    return presence, clock, worker


@requirement("routing.offline-workers")
def test_a_worker_that_is_gone_is_offline_although_the_clock_was_set_back(known: Known) -> None:
    presence, clock, worker = known
    clock.advance(seconds=-HOUR)
    assert presence.is_online(worker)
    clock.advance(seconds=INTERVAL)
    assert not presence.is_online(worker)


@requirement("routing.offline-workers")
def test_a_worker_stays_online_when_the_clock_is_set_ahead_and_no_longer_than_its_interval(known: Known) -> None:
    presence, clock, worker = known
    clock.jump(HOUR)
    assert presence.is_online(worker)
    clock.advance(seconds=INTERVAL)
    assert not presence.is_online(worker)


@requirement("routing.offline-workers")
def test_a_process_whose_clock_is_ahead_keeps_nobody_online(known: Known) -> None:
    presence, clock, worker = known
    presence.record_seen_elsewhere(worker.agent_id, clock.now() + HOUR * SECOND)
    clock.advance(seconds=INTERVAL)
    assert not presence.is_online(worker)


@requirement("routing.offline-workers")
def test_an_endpoint_rests_no_longer_when_the_clock_is_set_back(known: Known) -> None:
    presence, clock, _ = known
    endpoint = agent("endpoint", runtime=Runtime(kind="http"))
    for _ in range(MAX_FAILURES):
        presence.record_failed_delivery(endpoint.agent_id)
    clock.advance(seconds=-HOUR)
    assert not presence.is_online(endpoint)
    clock.advance(seconds=INTERVAL)
    assert presence.is_online(endpoint)


@requirement("routing.provider-failures")
def test_an_agent_whose_provider_failed_rests_and_is_then_tried_with_one_task(known: Known) -> None:
    presence, clock, worker = known
    for outcome in ("provider_failure", "cancelled", "provider_failure"):
        presence.record_outcome(worker.agent_id, outcome)
    assert not presence.is_resting(worker.agent_id, 0)
    presence.record_outcome(worker.agent_id, "provider_failure")
    assert presence.is_resting(worker.agent_id, 0)
    clock.jump(HOUR)
    clock.advance(seconds=29)
    assert presence.is_resting(worker.agent_id, 0)
    clock.advance(seconds=1)
    assert [presence.is_resting(worker.agent_id, ahead) for ahead in (0, 1)] == [False, True]
    presence.record_outcome(worker.agent_id, "success")
    assert not presence.is_resting(worker.agent_id, 1)


@requirement("routing.shared-outages")
def test_after_an_outage_of_all_each_agent_is_tried_once_and_blamed_no_more_if_it_works(known: Known) -> None:
    presence, _, _ = known
    presence.record_outcome("a", "provider_failure")
    presence.record_outcome("a", "success")
    before = presence.failing_share("a")
    for name in "abc" * 8:
        presence.record_outcome(name, "provider_failure")
    assert all(presence.is_resting(name, 0) and presence.failing_share(name) > 0.3 for name in "abc")
    presence.record_outcome("b", "success")
    assert presence.failing_share("b") == 0
    assert [presence.is_resting("a", ahead) for ahead in (0, 1)] == [False, True]
    assert presence.failing_share("a") <= before
    presence.record_outcome("a", "success")
    assert not presence.is_resting("a", 1)
    assert presence.failing_share("a") <= before
    presence.record_outcome("c", "provider_failure")
    assert presence.is_resting("c", 0)
    assert presence.failing_share("c") > 0.3
    presence.record_outcome("b", "success")
    assert presence.is_resting("c", 0)


@requirement("routing.shared-outages")
def test_an_agent_that_was_tried_and_works_brings_back_none_that_was_tried_and_failed(known: Known) -> None:
    presence, _, _ = known
    for name in "abc" * 8:
        presence.record_outcome(name, "provider_failure")
    presence.record_outcome("b", "success")
    presence.record_outcome("c", "provider_failure")
    presence.record_outcome("a", "success")
    assert presence.is_resting("c", 0)


@requirement("routing.shared-outages")
def test_an_agent_whose_provider_fails_now_and_then_brings_back_no_other_one(known: Known) -> None:
    presence, _, _ = known
    for _ in range(8):
        presence.record_outcome("down", "provider_failure")
    for outcome in ("provider_failure", "provider_failure", "provider_failure", "success"):
        presence.record_outcome("flaky", outcome)
    assert presence.is_resting("down", 0)
    assert presence.failing_share("flaky") > 0.1


@requirement("routing.provider-failures")
def test_the_share_of_tasks_that_a_provider_fails_fades_with_time(known: Known) -> None:
    presence, clock, worker = known
    presence.record_outcome(worker.agent_id, "success")
    assert presence.failing_share(worker.agent_id) == 0
    for n in range(200):
        presence.record_outcome(worker.agent_id, "success" if n % 2 else "provider_failure")
    share = presence.failing_share(worker.agent_id)
    assert share == pytest.approx(0.5, abs=0.03)
    presence.record_outcome(worker.agent_id, "cancelled")
    clock.jump(HOUR)
    clock.advance(seconds=120)
    assert presence.failing_share(worker.agent_id) == pytest.approx(share / 2)


@requirement("routing.provider-failures")
def test_the_share_is_remembered_between_tasks_that_are_minutes_apart(known: Known) -> None:
    presence, clock, worker = known
    for n in range(40):
        presence.record_outcome(worker.agent_id, "success" if n % 2 else "degraded_success")
        clock.advance(seconds=300)
    share = presence.failing_share(worker.agent_id)
    assert share == pytest.approx(0.43, abs=0.03)
    clock.advance(seconds=8 * 300)
    assert presence.failing_share(worker.agent_id) == pytest.approx(share / 2, rel=0.01)
    for _ in range(20):
        presence.record_outcome(worker.agent_id, "success")
        clock.advance(seconds=1)
    clock.advance(seconds=120)
    assert presence.failing_share(worker.agent_id) < share / 8


@requirement("routing.provider-failures")
def test_an_agent_whose_every_task_fails_hours_apart_is_known_to_fail(known: Known) -> None:
    presence, clock, worker = known
    for _ in range(60):
        presence.record_outcome(worker.agent_id, "provider_failure")
        clock.advance(seconds=30 * HOUR)
    assert presence.failing_share(worker.agent_id) > 0.9
    clock.advance(seconds=24 * HOUR)
    assert presence.failing_share(worker.agent_id) == pytest.approx(0.5, abs=0.05)


@requirement("routing.provider-failures")
def test_days_without_a_task_do_not_make_failures_last_for_hours(known: Known) -> None:
    presence, clock, worker = known
    presence.record_outcome(worker.agent_id, "provider_failure")
    clock.advance(seconds=10 * 24 * HOUR)
    for _ in range(6):
        presence.record_outcome(worker.agent_id, "provider_failure")
        clock.advance(seconds=1)
    assert presence.failing_share(worker.agent_id) > 0.2
    clock.advance(seconds=HOUR)
    assert presence.failing_share(worker.agent_id) < 0.01


@requirement("routing.offline-workers")
def test_a_worker_of_the_future_that_never_came_is_offline(known: Known) -> None:
    presence, clock, _ = known
    stranger = agent("stranger", runtime=Runtime(kind="worker"), created_at=clock.now() + HOUR * SECOND)
    assert not presence.is_online(stranger)


@requirement("execution.worker-leaves")
def test_a_worker_that_left_elsewhere_is_offline_until_it_is_seen_after_that(known: Known) -> None:
    presence, clock, worker = known
    presence.record_left_elsewhere(worker.agent_id, clock.now())
    assert not presence.is_online(worker)
    # A message from before, which arrives late.
    presence.record_seen_elsewhere(worker.agent_id, clock.now() - SECOND)
    assert not presence.is_online(worker)
    clock.advance(seconds=1)
    presence.record_seen_elsewhere(worker.agent_id, clock.now())
    assert presence.is_online(worker)


@requirement("execution.worker-leaves")
def test_a_process_where_a_worker_polls_contradicts_one_where_the_last_left() -> None:
    clock, told = FixedClock(), list[tuple[str, bool]]()
    presence = Presence(clock, INTERVAL, lambda agent_id, at, left=False: told.append((agent_id, left)))
    worker = agent("worker", runtime=Runtime(kind="worker"))
    presence.record_poll(worker.agent_id, "a poll", 1)
    presence.record_left_elsewhere(worker.agent_id, clock.now())
    assert presence.is_online(worker)
    assert told == [(worker.agent_id, False)]
    assert presence.departed == {worker.agent_id}, "the next poll deletes what the other process stored"
    presence.record_left(worker.agent_id)
    assert told[1:] == [(worker.agent_id, True)]


@requirement("execution.worker-leaves")
def test_each_poll_of_an_agent_counts_until_it_ends(known: Known) -> None:
    presence, clock, worker = known
    presence.record_poll(worker.agent_id, "one", 2)
    presence.record_poll(worker.agent_id, "other", 3)
    assert presence.concurrency(worker.agent_id) == 5
    presence.remove_poll(worker.agent_id, "other")
    assert presence.concurrency(worker.agent_id) == 2
    presence.record_left_elsewhere(worker.agent_id, clock.now())
    assert presence.is_online(worker)
    presence.remove_poll(worker.agent_id, "one")
    presence.remove_poll("unknown", "one")
    presence.record_left_elsewhere(worker.agent_id, clock.now())
    assert not presence.is_online(worker)
    assert presence._slots == {}


def test_a_worker_has_room_while_it_polls_and_between_two_polls_without_a_task(known: Known) -> None:
    presence, clock, worker = known
    agent_id = worker.agent_id
    assert not presence.has_free_slot(agent_id), "it has never polled"
    presence.record_poll(agent_id, "poll", 1)
    presence.record_lease(agent_id, "task", clock.now() + HOUR * SECOND)
    assert presence.has_free_slot(agent_id), "it has a task and asks for another one"
    presence.remove_poll(agent_id, "poll")
    assert not presence.has_free_slot(agent_id)
    presence.remove_lease(agent_id, "task")
    assert presence.has_free_slot(agent_id), "the next poll comes soon"
    clock.advance(seconds=6)
    assert not presence.has_free_slot(agent_id)


def test_a_worker_stalls_from_the_last_task_that_it_took_ended_or_asked_for(known: Known) -> None:
    presence, clock, worker = known
    agent_id, until = worker.agent_id, clock.now() + HOUR * SECOND
    presence.record_lease(agent_id, "a", until)
    clock.advance(seconds=1)
    assert presence.stalled_ms(agent_id) == 0, "it took the task in another process"
    for task_id in ("a", "b"):
        presence.record_poll(agent_id, "poll", 1)
        presence.record_claim(agent_id)
        presence.record_lease(agent_id, task_id, until)
        presence.remove_poll(agent_id, "poll")
        clock.advance(seconds=2)
    presence.record_lease(agent_id, "a", until)  # a heartbeat
    assert presence.stalled_ms(agent_id) == 2000
    presence.remove_lease(agent_id, "a")
    assert presence.stalled_ms(agent_id) == 0
    clock.advance(seconds=3)
    assert presence.stalled_ms(agent_id) == 3000
    presence.record_poll(agent_id, "poll", 1)
    presence.remove_poll(agent_id, "poll")
    clock.advance(seconds=1)
    assert presence.stalled_ms(agent_id) == 0, "it would have taken another one"
    presence.remove_lease(agent_id, "b")
    assert presence.stalled_ms(agent_id) == 0, "it holds nothing"
