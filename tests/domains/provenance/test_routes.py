"""The provenance routes: run trees, proofs that verify without the service, and checkpoints."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.core.runlog import EventDraft
from stentor.domains.monitoring import service as monitoring
from stentor.domains.provenance import merkle
from stentor.domains.provenance.signing.signed_note import open_note, parse_verifier
from tests.conftest import ADMIN, MakeWorld, World
from tests.patience import soon
from tests.requirements import requirement

BASE = "/api/v1/provenance"


async def complete_task(world: World) -> tuple[str, dict[str, Any]]:
    """Complete a task; return its id and its run."""
    task_id = await world.do(await world.register())
    response = await world.admin.get(f"{BASE}/{task_id}")
    assert response.status_code == 200, response.text
    return task_id, response.json()


def decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


@requirement("provenance.run-tree")
async def test_run_is_found_by_its_task_and_each_of_its_events(world: World) -> None:
    task_id, run = await complete_task(world)
    trail = await world.events(task_id)
    assert [event["provenance_id"] for event in run["events"]] == [event["event_id"] for event in trail]
    assert run["root"] == trail[0]["event_id"]
    assert all(later["parent_provenance_id"] == earlier["provenance_id"] for earlier, later in pairwise(run["events"]))
    assert {event["number"] for event in run["events"]} == {None}
    for event in run["events"]:
        assert (await world.admin.get(f"{BASE}/{event['provenance_id']}")).json() == run
    assert (run["truncated"], run["events"][0]["event_type"]) == (False, "prompt_received")


@requirement("provenance.run-tree")
async def test_run_of_a_message_contains_its_task(world: World) -> None:
    await world.register()
    body = json.dumps({"task": {"type": "echo", "input": "hello"}})
    header = {"mode": "direct", "context": "c", "priority": "low", "actionType": "execute", "targetZone": "kernel"}
    response = await world.admin.post("/api/v1/atp/send", json={"header": header, "payload": {"content": body}})
    assert response.status_code == 202, response.text

    async def list_tasks() -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = (await world.admin.get("/api/v1/tasks")).json()["tasks"]
        return tasks

    tasks = await soon(list_tasks)
    run = (await world.admin.get(f"{BASE}/{tasks[0]['task_id']}")).json()
    kinds = [event["event_type"] for event in run["events"]]
    assert kinds[:3] == ["message_received", "message_started", "prompt_received"]
    assert run["root"] == run["events"][0]["provenance_id"]
    ids = {event["provenance_id"] for event in run["events"]}
    assert all(event["parent_provenance_id"] in ids for event in run["events"][1:])


@requirement("provenance.tenants")
async def test_unknown_or_foreign_id_returns_404(world: World) -> None:
    task_id, run = await complete_task(world)
    for path in (task_id, run["root"], f"{task_id}/proof", f"{run['root']}/proof", "nothing", "nothing/proof", "%00"):
        response = await world.clients["OTHER"].get(f"{BASE}/{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "NOT_FOUND")


@requirement("tasks.agents-see-their-own")
async def test_an_agents_key_reads_no_error_output_and_no_question_of_anothers_task(world: World) -> None:
    task_id = await world.do(await world.register(key_name="other"))
    drafts = [
        EventDraft("agent_logged", "execution", "The agent wrote 1 lines.", {"epoch": 1, "stderr": ["secret"]}),
        EventDraft("step_started", "steps", "Asks: secret?", {"key": "q", "waits_for": "secret?"}),
    ]
    infra = world.kernel.infra
    await infra.db.write(lambda tx: infra.runlog.append(tx, "default", drafts, task_id=task_id))
    await world.admin.post(f"{BASE}/checkpoint")
    paths = [f"{BASE}/{task_id}", *(f"{BASE}/{draft.event_id}/proof" for draft in drafts)]
    for path in paths:
        seen = {key: (await world.clients[key].get(path)).json() for key in ("READER", "BOB")}
        assert ("secret" in str(seen["READER"]), "secret" in str(seen["BOB"])) == (True, False), path
    run, *proofs = [(await world.clients["BOB"].get(path)).json() for path in paths]
    assert [event["metadata"] for event in run["events"][-2:]] == [{"epoch": 1}, {"key": "q"}]
    assert [proof["event"] for proof in proofs] == [None, None]
    assert all(proof["leaf_hash"] and proof["hashes"] for proof in proofs)


@requirement("provenance.inclusion-and-consistency", "provenance.signed-checkpoints")
async def test_proof_verifies_with_only_the_event_and_the_key(world: World) -> None:
    task_id, run = await complete_task(world)
    waiting = await world.admin.get(f"{BASE}/{task_id}/proof")
    assert (waiting.status_code, waiting.json()["error"]["code"]) == (409, "CONFLICT")
    published = await world.admin.post(f"{BASE}/checkpoint")
    assert published.status_code == 200, published.text
    verifier = parse_verifier(published.json()["key"])
    for event in run["events"]:
        proof = (await world.admin.get(f"{BASE}/{event['provenance_id']}/proof")).json()
        leaf = sha256(b"\0" + proof["event"].encode()).digest()
        path = [decode(text) for text in proof["hashes"]]
        checkpoint = open_note(proof["checkpoint"], [verifier])
        assert merkle.verify_inclusion(leaf, proof["number"], checkpoint.size, path, checkpoint.root)
        assert (decode(proof["leaf_hash"]), decode(proof["root"])) == (leaf, checkpoint.root)
        recorded = json.loads(proof["event"])
        assert (recorded["event_id"], recorded["event_type"]) == (event["provenance_id"], event["event_type"])
    assert (await world.admin.get(f"{BASE}/{task_id}/proof")).json()["provenance_id"] == run["root"]
    numbers = [event["number"] for event in (await world.admin.get(f"{BASE}/{task_id}")).json()["events"]]
    assert numbers == sorted(numbers)


@requirement("provenance.inclusion-and-consistency")
async def test_consistency_proof_between_two_checkpoints_verifies(world: World) -> None:
    checkpoints, agent_id = [], await world.register()
    for _ in range(3):
        await world.do(agent_id)
        checkpoints.append((await world.admin.post(f"{BASE}/checkpoint")).json())
    old, _, new = checkpoints
    query = {"from": old["size"], "to": new["size"]}
    proof = (await world.admin.get(f"{BASE}/consistency", params=query)).json()
    assert (proof["from_root"], proof["to_root"]) == (old["root"], new["root"])
    path = [decode(text) for text in proof["hashes"]]
    assert merkle.verify_consistency(old["size"], new["size"], decode(old["root"]), decode(new["root"]), path)
    assert len({entry["size"] for entry in checkpoints}) == 3


@requirement("provenance.signed-checkpoints")
async def test_checkpoint_is_a_note_as_text_and_an_object_as_json(world: World) -> None:
    missing = await world.admin.get(f"{BASE}/checkpoint")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "NOT_FOUND")
    await complete_task(world)
    published = (await world.admin.post(f"{BASE}/checkpoint")).json()
    as_json = await world.clients["READER"].get(f"{BASE}/checkpoint")
    assert as_json.json() == published
    text = await world.clients["READER"].get(f"{BASE}/checkpoint", headers={"Accept": "text/plain"})
    assert text.headers["content-type"].startswith("text/plain")
    assert text.text == published["note"]
    checkpoint = open_note(text.text, [parse_verifier(published["key"])])
    assert (checkpoint.origin, checkpoint.size) == (published["origin"], published["size"])
    assert (await world.admin.post(f"{BASE}/checkpoint")).json() == published


@pytest.mark.parametrize(
    "query", ["", "from=1", "from=0&to=1", "from=2&to=1", "from=1&to=99999", "from=x&to=1", "from=1&to=1e400"]
)
async def test_invalid_consistency_range_returns_400(world: World, query: str) -> None:
    await complete_task(world)
    await world.admin.post(f"{BASE}/checkpoint")
    response = await world.admin.get(f"{BASE}/consistency?{query}")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")


async def test_proof_size_that_does_not_cover_the_event_returns_400(world: World) -> None:
    task_id, _ = await complete_task(world)
    size = (await world.admin.post(f"{BASE}/checkpoint")).json()["size"]
    for invalid_size in (1, size + 1, 0, "x"):
        response = await world.admin.get(f"{BASE}/{task_id}/proof", params={"size": invalid_size})
        assert response.status_code == 400, response.text
    await world.submit()
    await world.kernel.provenance.sequencer.drain()
    proof = (await world.admin.get(f"{BASE}/{task_id}/proof", params={"size": size + 1})).json()
    assert (proof["size"], proof["checkpoint"]) == (size + 1, None)


@requirement("provenance.failure-is-seen")
async def test_broken_sequencer_is_reported_and_tasks_continue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else an alert's check of the moment before would still count.
    monkeypatch.setattr(monitoring, "CACHE_SECONDS", 0)
    task_id, _ = await complete_task(world)
    await world.kernel.provenance.sequencer.drain()
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql("delete from provenance_tiles")))
    await world.submit()
    world.kernel.provenance.sequencer._frontier = None
    assert await world.kernel.provenance.sequencer.run_once() == 0
    health = await world.admin.get("/api/v1/health/detailed")
    assert (health.status_code, health.json()["components"]["provenance"]["status"]) == (503, "unavailable")
    assert "stentor provenance verify" in health.json()["components"]["provenance"]["detail"]
    assert (await world.admin.get("/api/v1/health/ready")).status_code == 200
    await world.submit()
    metrics = (await world.admin.get("/metrics")).text
    assert "stentor_provenance_broken 1.0" in metrics
    lag = next(line for line in metrics.splitlines() if line.startswith("stentor_provenance_lag_events "))
    assert float(lag.split()[1]) >= 6
    for path in (f"{task_id}/proof", "consistency?from=1&to=2"):
        response = await world.admin.get(f"{BASE}/{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (500, "RUN_LOG_DAMAGED")
    refused = await world.admin.post(f"{BASE}/checkpoint")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "RUN_LOG_DAMAGED")


@requirement("provenance.failure-is-seen")
async def test_metrics_report_the_sequencer_lag(world: World) -> None:
    async with world.kernel.provenance.sequencer._lock:  # else it may number the events before they are looked at
        await world.do(await world.register())
        world.clock.advance(seconds=7)
        before = (await world.admin.get("/metrics")).text
    assert "stentor_provenance_lag_seconds 7.0" in before
    await world.admin.post(f"{BASE}/checkpoint")
    after = (await world.admin.get("/metrics")).text
    for line in ("lag_events 0.0", "lag_seconds 0.0", "broken 0.0"):
        assert f"stentor_provenance_{line}" in after
    health = (await world.admin.get("/health")).status_code
    assert health == 200


async def test_signing_key_is_in_no_response(make_world: MakeWorld) -> None:
    world = await make_world()
    await complete_task(world)
    secret = world.kernel.provenance.signer.text.split("+", 4)[4].strip()  # Base64 may contain a + too.
    for path in (f"{BASE}/checkpoint", "/api/v1/health/detailed", "/metrics"):
        assert secret not in (await world.admin.get(path, headers=ADMIN)).text
