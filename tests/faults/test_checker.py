"""The checker finds each kind of damage; a checker that cannot fail would prove nothing."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.conftest import serving
from tests.faults.checker import check
from tests.faults.history import History, judge
from tests.faults.load import Load, summaries, wait_for

pytestmark = pytest.mark.slow
DAMAGE = {
    "lost": ("delete from tasks where task_id = 'sum-00001'", "was accepted and is lost"),
    "open": ("update tasks set status = 'queued', completion_time = null where task_id = 'sum-00001'", "still queued"),
    "orphan": ("delete from tasks where task_id = 'sum-00001'", "has events and no row"),
    "uninvited": ("update tasks set task_id = 'x' where task_id = 'sum-00001'", "was never submitted"),
    "twice": (
        "insert into events select 'ffff', tenant, task_id, agent_id, parent_id, happened_at, event_type, component, "
        "message, duration_ms, metadata from events where task_id = 'sum-00001' and event_type = 'task_completed'",
        "ended 2 times",
    ),
    "no beginning": ("delete from events where event_type = 'prompt_received'", "has no beginning"),
    "gap": ("delete from events where event_type = 'routing_decision'", "broken chain"),
    "head": ("update tasks set head_id = provenance_id", "does not point to"),
    "attempts": ("update tasks set epoch = 7", "in 7 attempts"),
    "epochs": (
        "insert into events select 'ffff', tenant, task_id, agent_id, parent_id, happened_at, event_type, component, "
        "message, duration_ms, metadata from events where task_id = 'sum-00001' and event_type = 'task_started'",
        "has epochs that go back: [1, 1]",
    ),
    "other end": ("update tasks set status = 'failed' where task_id = 'sum-00001'", "is failed, its events say"),
    "no lesson": ("delete from events where event_type = 'learning_updated'", "taught 0 lessons"),
    "history": ("delete from hebbian_history where task_id = 'sum-00001'", "was learned 0 times and moved trust 1"),
    "trust": ("delete from trust_changes where cause like '%sum-00001%'", "moved trust 0 times"),
    "future lesson": ("update hebbian_history set epoch = 9", "which it never had"),
    "weight": ("update hebbian_weights set weight = 5", "does not follow from its"),
    "samples": ("update hebbian_weights set samples = samples - 1", "does not follow from its"),
    "message": (
        "insert into events select event_id || 'm', tenant, null, null, null, happened_at, 'message_completed', "
        "component, message, null, '{\"message_id\": \"gone\"}' from events where event_type = 'prompt_received'",
        "message gone has events and no row",
    ),
    "rewritten": ("update events set message = 'x' where event_type = 'task_completed'", "does not verify"),
    "unnumbered": ("delete from provenance_leaves where number = 3", "does not verify"),
    "two at once": (
        "update events set event_type = 'task_started', metadata = '{\"epoch\": 0}' "
        "where event_type = 'routing_decision'",
        "became executing when it was executing",
    ),
    "after the end": (
        "update events set event_type = 'task_cancelled' where event_type = 'routing_decision'",
        "became executing when it was cancelled",
    ),
    "no right": ("update tasks set learning_eligible = 0 where task_id = 'sum-00001'", "should not have taught"),
    "unlearned": (
        "delete from hebbian_history where task_id = 'sum-00001'",
        "should have taught in attempt 1",
    ),
    "lost lesson": (
        "update hebbian_history set weight_before = weight_before - 1 where task_id = 'sum-00004'",
        "which end in [",
    ),
    "trust of nowhere": ("update trust_scores set score = 0.123", "is no change's"),
    "counts": ("update task_counts set n = n + 1 where status = 'completed'", "counts"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of five tasks that were done in peace."""
    folder = tmp_path_factory.mktemp("sound")
    with serving(folder) as start:
        service = start()
        load = Load(service.address, service.key, summaries(5), threads=1)
        load.start()
        load.join()
        with service.client() as client:
            wait_for(client, 5)
    assert isinstance(service.database, Path)
    return service.database


ACCEPTED = [f"sum-{i:05}" for i in range(5)]


def test_a_sound_database_has_nothing_wrong(sound: Path) -> None:
    assert check(sound, ACCEPTED) == []
    assert check(sound, ACCEPTED[:3], ACCEPTED[3:]) == []


@pytest.mark.parametrize(("statement", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found(sound: Path, tmp_path: Path, statement: str, sentence: str) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(sound, copy)
    with sqlite3.connect(copy) as connection:
        connection.execute("drop trigger tasks_moves")
        connection.execute("pragma ignore_check_constraints = on")
        assert connection.execute(statement).rowcount > 0
    connection.close()
    found = check(copy, ACCEPTED)
    assert [line for line in found if sentence in line], found


def told(flaw: str) -> History:
    """A history of the sound database with one flaw in it."""
    history = History(asked=set(ACCEPTED))
    for task_id in ACCEPTED:
        history.was_accepted(task_id, {"task_id": task_id, "status": "queued"})
        history.was_read(task_id, "completed")
        history.was_finished(task_id, 1)
    match flaw:
        case "two answers":
            history.was_accepted(ACCEPTED[0], {"task_id": ACCEPTED[0], "status": "failed"})
        case "lost":
            history.was_accepted("gone", {"task_id": "gone"})
        case "stranger":
            history.accepted.pop(ACCEPTED[0])
            history.asked.discard(ACCEPTED[0])
        case "cancelled":
            history.cancelled[ACCEPTED[0]] = 0.0
        case "cancelled twice":
            history.cancelled[ACCEPTED[0]] = 0.0
            history.was_cancelled(ACCEPTED[0])
        case "other end":
            history.was_read(ACCEPTED[0], "failed")
        case "read back":
            history.was_read(ACCEPTED[0], "queued")
        case "two results":
            history.was_finished(ACCEPTED[0], 2)
    return history


FLAWS = {
    "two answers": "was answered",
    "lost": "was accepted and is lost",
    "stranger": "was never submitted",
    "cancelled": "was cancelled with 200 and is completed",
    "cancelled twice": "was cancelled twice",
    "other end": "was completed and then read as failed",
    "read back": "was completed and then read as queued",
    "two results": "has the results of the attempts [1, 2] and ended in attempt 1",
}


def test_a_true_history_has_nothing_wrong(sound: Path) -> None:
    assert judge(sound, told("nothing")) == []


@pytest.mark.parametrize(("flaw", "sentence"), FLAWS.items(), ids=FLAWS)
def test_a_history_that_is_not_so_is_found(sound: Path, flaw: str, sentence: str) -> None:
    found = judge(sound, told(flaw))
    assert [line for line in found if sentence in line], found


ON_POSTGRESQL = {
    "delete from tasks where task_id = 'sum-00001'": "sum-00001 was accepted and is lost",
    "update tasks set status = 'failed' where task_id = 'sum-00002'": "sum-00002 is failed, its events say",
    "update events set event_type = 'task_cancelled' where task_id = 'sum-00003' and event_type = 'routing_decision'": (
        "sum-00003 became executing when it was cancelled"
    ),
    "delete from hebbian_history where task_id = 'sum-00004'": "sum-00004 should have taught in attempt 1",
    "update trust_scores set score = 0.123": "is no change's",
    "update hebbian_weights set samples = samples - 1": "does not follow from its",
    "update events set message = 'x' where task_id = 'sum-00000' and event_type = 'task_completed'": "does not verify",
    "update task_counts set n = n + 1 where status = 'completed'": "counts",
}


def test_damage_is_found_on_postgresql_too(postgres_url: str, tmp_path: Path) -> None:
    with serving(tmp_path) as start:
        service = start(SERVICE_DATABASE_URL=postgres_url)
        load = Load(service.address, service.key, summaries(5), threads=1)
        load.start()
        load.join()
        with service.client() as client:
            wait_for(client, 5)
    assert check(postgres_url, ACCEPTED) == []
    with psycopg.connect(postgres_url) as connection:
        connection.execute("set session_replication_role = replica")  # no triggers
        for statement in ON_POSTGRESQL:
            assert connection.execute(statement.encode()).rowcount > 0, statement
    found = check(postgres_url, ACCEPTED)
    missed = [sentence for sentence in ON_POSTGRESQL.values() if not any(sentence in line for line in found)]
    assert missed == [], found
