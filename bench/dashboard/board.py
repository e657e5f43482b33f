"""What the dashboard's pages show beside tasks: agents' standing and its history in rows, the rest by the service."""

from __future__ import annotations

import json
import random
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.dashboard import filled
from bench.dashboard.rows import TENANTS, WORDS
from bench.service import Client
from stentor.core.clock import DAY, SystemClock
from stentor.web.wire import encode_cursor

CAPABILITY = "live"
"""What only the builtin agent of the live figures can do."""
OF_EACH = 60
"""Updates, checkpoints and messages: more than a page shows."""
NOTES = 200
_OUTCOME = "outcome_class in ('success', 'agent_failure', 'timeout') and assigned_agent is not null"
_SQL = (
    f"""insert into hebbian_history (entry_id, agent_id, task_type, tenant, task_id, epoch, delta, result,
        weight_before, weight_after, happened_at)
    select head_id, assigned_agent, type, tenant, task_id, 1, case outcome_class when 'success' then 1 else -1 end,
        outcome_class, 1.2, case outcome_class when 'success' then 1.25 else 1.1 end, completion_time
    from tasks where {_OUTCOME}""",
    f"""insert into trust_changes (change_id, tenant, entity_id, kind, delta, score, cause, happened_at)
    select head_id, tenant, assigned_agent, case outcome_class when 'success' then 'success' else 'failure' end,
        0.02, 0.7, task_id, completion_time from tasks where {_OUTCOME}""",
    f"""insert into hebbian_weights (agent_id, task_type, weight, mean_ms, samples, recent, updated_at)
    select assigned_agent, type, 0.5 + abs(random() % 1000) / 500.0, 900, count(*), 'SSFSSSSF', max(completion_time)
    from tasks where {_OUTCOME} group by 1, 2""",
    """insert into trust_scores (tenant, entity_id, entity_type, score, updated_at)
    select tenant, agent_id, 'agent', 0.3 + abs(random() % 700) / 1000.0, :now from agents""",
    """insert into hebbian_connections (tenant, low, high, agent1, agent2, weight, updated_at)
    select tenant, agent_id, other, agent_id, other, 1.3, :now from (
        select tenant, agent_id, lead(agent_id, 3) over (partition by tenant order by agent_id) as other from agents)
    where other is not null""",
    """insert into violations (violation_id, agent_id, type, details, happened_at)
    select 'v-' || agent_id, agent_id, 'rate_limit', 'Too many calls of read_file.', :now from agents
    where rowid % 10 = 0""",
    "update agents set violation_count = 1 where rowid % 10 = 0",
    """insert into sentinel_alerts (alert_id, agent_id, task_type, rate, threshold, samples, opened_at)
    select 'a-' || agent_id, agent_id, 'review', 0.6, 0.4, 50, :now from agents where rowid % 20 = 0""",
    """insert into llm_calls (call_id, tenant, key_name, agent_id, task_id, operation, provider, model, outcome,
        input_tokens, output_tokens, estimated, cost, latency_ms, happened_at)
    select task_id, tenant, 'shared', assigned_agent, task_id, 'chat', 'provider-' || rowid % 3, 'model-' || rowid % 7,
        'ok', 400, 120, 0, 900000, 700, completion_time from tasks where completion_time > :month""",
)


def database(folder: Path, rows: int, agents: int) -> Path:
    """A data folder with `rows` tasks of two tenants, `agents` of the first, and a vault of notes."""
    data = filled.database(folder, rows, {TENANTS[0]: agents, TENANTS[1]: 5})
    with closing(sqlite3.connect(data / "stentor.db")) as db, db:
        now = SystemClock().now()
        for sql in _SQL:
            db.execute(sql, {"now": now, "month": now - 30 * DAY})
    _notes(data / "vault")
    return data


def _notes(vault: Path) -> None:
    dice = random.Random(5)
    vault.mkdir(exist_ok=True)
    for n in range(NOTES):
        text = " ".join(dice.choices(WORDS, k=60))
        links = f"See [[note-{dice.randrange(NOTES)}]] and [[note-{dice.randrange(NOTES)}]]."
        (vault / f"note-{n}.md").write_text(f"---\ntags: [bench]\n---\n# Note {n}\n\n{text}\n\n{links}\n")


def known(data: Path) -> dict[str, list[str]]:
    """Tasks with a run log, agents and places in the list of tasks, of the first tenant, by route parameter."""
    with closing(sqlite3.connect(data / "stentor.db")) as db:
        found = db.execute("select agent_id from agents where tenant = ? order by agent_id", TENANTS[:1])
        agents = [str(row[0]) for row in found]
        query = "select created_at, task_id from tasks where tenant = ? and rowid % 97 = 0"
        cursors = [encode_cursor(*row) for row in db.execute(query, TENANTS[:1])]
    return {"agent_id": agents, "task_id": filled.sampled_ids(data / "stentor.db", 2_000), "cursor": cursors}


def populate(client: Client, agents: list[str]) -> dict[str, list[str]]:
    """Updates, checkpoints, rollbacks, messages and a webhook made by the service; their ids by route parameter."""
    dice = random.Random(13)
    some = dice.sample(agents, min(OF_EACH, len(agents)))
    _post(client, "registry/agents", _worker())
    taken = [_post(client, "governance/checkpoints", {"agent_id": one})["checkpoint_id"] for one in some]
    reverts = [
        {"checkpoint_id": one, "initiated_by": "bench", "reason": "It got worse.", "details": ""} for one in taken[::3]
    ]
    hook, delivery = _webhook(client)
    return {
        "update_id": [_post(client, "governance/updates", _update(one))["update_id"] for one in some],
        "checkpoint_id": taken,
        "rollback_id": [_post(client, "governance/rollbacks", one)["rollback_id"] for one in reverts],
        "message_id": [_post(client, "atp/send", _message(n))["messageId"] for n in range(OF_EACH)],
        "webhook_id": [hook],
        "delivery_id": [delivery],
    }


def _worker() -> dict[str, Any]:
    runtime = {"kind": "builtin", "name": "summarizer"}
    return {"name": "live", "capabilities": [CAPABILITY], "trust_tier": "auto", "runtime": runtime}


def _update(agent_id: str) -> dict[str, Any]:
    changes = {"files_modified": ["prompts/answer.md"], "lines_added": 40, "lines_deleted": 3, "lines_total": 900}
    changes |= {"breaking": True, "new_dependencies": False, "touches_policy": False}
    changes |= {"agent_patch": {"capabilities": ["summarize", "review"]}}
    words = {"update_type": "prompt", "description": "Shorter answers.", "checkpoint_id": None}
    return {"update_id": str(uuid.uuid4()), "agent_id": agent_id, "changes": changes, **words}


def _message(n: int) -> dict[str, Any]:
    header = {"mode": "direct", "context": f"trace-{n}", "priority": "normal"}
    header |= {"actionType": "list", "targetZone": "registry"}
    return {"header": header, "payload": {"content": "{}"}}


def _webhook(client: Client) -> tuple[str, str]:
    """One that hears of nothing the bench does, with the delivery of its test."""
    hook = _post(client, "webhooks", {"url": "http://127.0.0.1:9/", "events": ["memory.conflict"]})["id"]
    return str(hook), str(_post(client, f"webhooks/{hook}/test", {})["id"])


def _post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(client.send("POST", f"/api/v1/{path}", json.dumps(body).encode())))
