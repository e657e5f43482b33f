"""`stentor db split`: one of two tenants goes to another PostgreSQL database, and what may go wrong on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from stentor.cli.commands.db import split_tenants
from stentor.cli.output import CommandFailed
from stentor.core.db.database_url import parse_database_url
from stentor.core.db.transfer import Table
from stentor.core.db.transfer.model import NOT_COPIED, Column
from stentor.core.db.transfer.postgres import PostgresSide
from stentor.core.db.transfer.tenant_split import SPLITTING_VERSION, require_known
from stentor.core.errors import StartRefused
from tests.cli.populated import ENVIRON, post, stop
from tests.cli.program import Done, Program
from tests.cli.test_db_copy import held_up, refused, start_refused, until_waiting, with_password
from tests.conftest import KEYS, Service
from tests.requirements import requirement

pytestmark = pytest.mark.only("postgresql", reason="a split is from PostgreSQL to PostgreSQL")
OTHER = KEYS["OTHER"].split(":")[0]
Serve = Callable[..., Service]
BLOCKED = "datname = current_database() and wait_event_type = 'Lock'"
LEFT_BEHIND = "select count(*) from tasks where tenant = 'other'"


class Installation:
    """A service with the tenants `default` and `other`, stopped; each has a task that ended and one that waits."""

    def __init__(self, serve: Serve, url: str, folder: Path) -> None:
        self.url, self.serve = url, serve
        service = serve(folder / "data", SERVICE_DATABASE_URL=url, **ENVIRON)
        self.tasks = {}
        for key in (service.key, OTHER):
            with service.client(key) as api:
                self.tasks[key] = fill(api)
        stop(service)
        self.key = service.key
        self.program = Program(folder / "data", {"SERVICE_DATABASE_URL": url})

    def split(self, target: str, *tenants: str) -> Done:
        return self.program("db", "split", *(f"--tenant={name}" for name in tenants), "--to", target, "--json")


def fill(api: httpx.Client) -> tuple[str, str]:
    agent = post(api, "/registry/agents", name="ann", capabilities=["echo"])["agent_id"]
    post(api, "/webhooks", url="http://127.0.0.1:9/hook", events=["task.*"])
    post(api, "/sessions", id="talk")
    done, waiting = (
        post(api, "/tasks", type="echo", input="hello", required_capabilities=["echo"])["task_id"] for _ in range(2)
    )
    claim = post(api, f"/agents/{agent}/claims", max=1)["tasks"][0]
    post(api, f"/tasks/{claim['task_id']}/complete", epoch=claim["epoch"], result="hi")
    return claim["task_id"], next(task for task in (done, waiting) if task != claim["task_id"])


@pytest.fixture
def installation(serve: Serve, postgres_url: str, tmp_path: Path) -> Installation:
    return Installation(serve, postgres_url, tmp_path)


def value(url: str, query: str) -> Any:
    with psycopg.connect(url) as session:
        row = session.execute(query.encode()).fetchone()
    return row and row[0]


def moved(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err + done.out
    assert done.json["run_log"]["intact"] is True
    return dict(done.json)


def is_there(service: Service, key: str, tasks: tuple[str, str]) -> bool:
    """Whether a tenant's tasks are here, and the waiting one can be done."""
    with service.client(key) as api:
        if api.get(f"/api/v1/tasks/{tasks[0]}").status_code == 404:
            assert api.get("/api/v1/tasks").json()["tasks"] == []
            assert api.get("/api/v1/registry/agents").json()["agents"] == []
            return False
        ended = api.get(f"/api/v1/tasks/{tasks[0]}").json()
        assert (ended["status"], ended["result"]) == ("completed", "hi")
        events = api.get(f"/api/v1/tasks/{tasks[0]}/activity").json()["events"]
        assert events[0]["event_type"] == "prompt_received"
        agents = api.get("/api/v1/registry/agents").json()["agents"]
        agent = next(agent for agent in agents if agent["name"] == "ann")
        claim = post(api, f"/agents/{agent['agent_id']}/claims", max=2)["tasks"]
        assert [task["task_id"] for task in claim] == [tasks[1]]
        post(api, f"/tasks/{tasks[1]}/complete", epoch=claim[0]["epoch"], result="hi")
    return True


def check_both(installation: Installation, target: str, tmp_path: Path) -> None:
    """Each tenant is on exactly one side, works there, and both run logs verify."""
    sides = {}
    for name, url in (("data", installation.url), ("elsewhere", target)):
        service = installation.serve(tmp_path / name, SERVICE_DATABASE_URL=url, SERVICE_BUILTIN_AGENTS="0", **ENVIRON)
        sides[name] = {key: is_there(service, key, tasks) for key, tasks in installation.tasks.items()}
        stop(service)
        verified = Program(tmp_path / name, {"SERVICE_DATABASE_URL": url})("provenance", "verify", "--json")
        findings = verified.json["findings"]
        assert [finding for finding in findings if finding["kind"] != "checkpoint"] == [], findings
    assert sides == {
        "data": {installation.key: True, OTHER: False},
        "elsewhere": {installation.key: False, OTHER: True},
    }


@requirement("scale.split", "retention.proofs")
def test_archived_tasks_of_a_tenant_are_known_where_it_went(
    installation: Installation, bare_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(installation.url) as session:
        session.execute("delete from webhook_deliveries")  # a task with one that is open stays
    archived = installation.program("archive", "run", "--older-than", "0d", "--json").json
    assert archived["tasks"] == 2
    moved(installation.split(with_password(bare_url), "other"))
    folder = tmp_path / "data" / "archive"
    for name, url, own in (("data", installation.url, installation.key), ("elsewhere", bare_url, OTHER)):
        program = Program(tmp_path / name, {"SERVICE_DATABASE_URL": url})
        verified = program("archive", "verify", "--folder", str(folder), "--json").json
        assert (verified["intact"], verified["events"]) == (True, archived["events"])
        service = installation.serve(tmp_path / name, SERVICE_DATABASE_URL=url, SERVICE_BUILTIN_AGENTS="0", **ENVIRON)
        for key, (ended, _) in installation.tasks.items():
            with service.client(key) as api:
                assert api.get(f"/api/v1/tasks/{ended}").status_code == (410 if key == own else 404)
        stop(service)


@requirement("scale.split")
def test_a_tenant_moves_with_its_tasks_and_each_side_goes_on_with_its_own(
    installation: Installation, bare_url: str, tmp_path: Path
) -> None:
    result = moved(installation.split(with_password(bare_url), "other"))
    rows = {table["table"]: table["rows"] for table in result["tables"]}
    assert (rows["tasks"], rows["agents"], rows["webhook_subscriptions"], rows["sessions"]) == (2, 2, 1, 1)
    assert f"split off at {result['run_log']['size']} events" in result["acceptance"]
    leaves = "select string_agg(hash, ',' order by number) from provenance_leaves"
    assert value(installation.url, leaves) == value(bare_url, leaves)
    assert value(bare_url, "select count(*) from provenance_checkpoints") > 0
    check_both(installation, bare_url, tmp_path)
    # No key of the source: the log goes on under one of its own, once somebody has accepted it.
    target = Program(tmp_path / "elsewhere", {"SERVICE_DATABASE_URL": bare_url})
    accepted = target("provenance", "accept", "--new-key", "--reason", result["acceptance"])
    assert accepted.code == 0, accepted.err


@pytest.mark.fault
@requirement("scale.split-interrupted")
@pytest.mark.parametrize("moment", ["copying", "deleting", "finishing"])
def test_after_a_kill_the_same_command_ends_with_nothing_lost_or_doubled(
    installation: Installation, bare_url: str, tmp_path: Path, moment: str
) -> None:
    other = Program(installation.program.data_dir, {"SERVICE_DATABASE_URL": bare_url})
    assert other("db", "upgrade").code == 0
    agent = value(installation.url, "select agent_id from agents where tenant = 'other' and name = 'ann'")
    # Not committed elsewhere, so the copy waits in the middle of the table.
    counted = f"insert into task_counts values ('other', -1, 'completed', '{agent}', 1)"
    first = (bare_url, counted) if moment == "copying" else (installation.url, "lock table tasks in share mode")
    words = ("db", "split", "--tenant=other", "--to", bare_url)
    with held_up(*first) as session:
        process = installation.program.start(*words)
        until_waiting(first[0], process)
        if moment == "finishing":
            # Now the source waits to delete: hold up the last step before letting it.
            with held_up(bare_url, "update alembic_version set version_num = version_num"):
                session.rollback()
                until_waiting(bare_url, process)
                process.send_signal(signal.SIGKILL)
                process.communicate(timeout=60)
                # Its statement waits in the server, which would otherwise carry it out.
                value(bare_url, f"select count(pg_terminate_backend(pid)) from pg_stat_activity where {BLOCKED}")
        else:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
    assert value(installation.url, LEFT_BEHIND) == (0 if moment == "finishing" else 2)
    next_step = "run the interrupted `stentor db copy`" if moment == "copying" else "run `stentor db split` again"
    assert next_step in start_refused(other, bare_url)
    moved(installation.split(bare_url, "other"))
    check_both(installation, bare_url, tmp_path)


@requirement("scale.split-interrupted")
def test_what_the_source_has_deleted_is_never_overwritten(
    installation: Installation, bare_url: str, tmp_path: Path
) -> None:
    moved(installation.split(bare_url, "other"))
    # As if it had been killed before its last step.
    unfinished = f"update alembic_version set version_num = '{SPLITTING_VERSION}' returning version_num"
    assert value(bare_url, unfinished) == SPLITTING_VERSION
    refused(installation.split(bare_url, "default"), "A split of the tenant 'other' into")
    added = "insert into task_counts values ('other', -1, 'completed', 'somebody', 1) returning 1"
    assert value(installation.url, added) == 1
    refused(installation.split(bare_url, "other"), "has new rows of the same tenants")
    assert value(bare_url, LEFT_BEHIND) == 2
    value(installation.url, "delete from task_counts where tenant = 'other' returning 1")
    moved(installation.split(bare_url, "other"))
    check_both(installation, bare_url, tmp_path)


@requirement("scale.split-refused")
def test_what_cannot_move_is_refused_and_nothing_changes(installation: Installation, bare_url: str) -> None:
    program, hidden_url = installation.program, with_password(bare_url)
    refused(installation.split(hidden_url, "other", "nobody"), "no rows of the tenant 'nobody'")
    refused(installation.split(with_password(installation.url), "other"), "in use")
    refused(installation.split(installation.url, "other"), "itself", code=2)
    refused(installation.split("sqlite:///x.db", "other"), "PostgreSQL", code=2)
    with psycopg.connect(installation.url) as session:
        session.execute("insert into memory_records (path, version, raw_hash) values ('a.md', 1, 'x')")
    refused(installation.split(hidden_url, "default"), "owns the vault")
    assert value(installation.url, LEFT_BEHIND) == 2
    assert value(bare_url, "select count(*) from tasks") == 0
    moved(installation.split(hidden_url, "other"))
    refused(installation.split(hidden_url, "default"), "is not empty")
    assert program("db", "status").code == 0


@requirement("scale.pooler")
def test_a_split_goes_past_the_pooler(postgres_url: str, bare_url: str, tmp_path: Path) -> None:
    pooler = "postgresql://nobody@127.0.0.1:1/stentor"
    environ = {"SERVICE_DATABASE_URL": pooler, "SERVICE_DATABASE_SESSION_URL": postgres_url}
    split = partial(Program(tmp_path / "data", environ), "db", "split", "--tenant=nobody", "--json", "--to")
    refused(split(bare_url), "no rows of the tenant 'nobody'")
    refused(split(pooler), "itself", code=2)


@requirement("scale.split-refused")
def test_a_split_of_the_default_database_says_that_it_is_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVICE_DATABASE_URL", raising=False)
    with pytest.raises(CommandFailed, match="copies a SQLite database to PostgreSQL"):
        split_tenants(["other"], "postgresql://x@localhost/y", [], tmp_path)


@requirement("scale.split-refused")
def test_every_table_of_the_schema_says_whose_its_rows_are(postgres_url: str) -> None:
    side = PostgresSide(parse_database_url(postgres_url), write=False)
    with side.open():
        tables = [table for name, table in side.tables().items() if name not in NOT_COPIED]
    require_known(tables)
    with pytest.raises(StartRefused, match="The rows of the table new have no tenant"):
        require_known([Table("new", (Column("id"),), ("id",))])
