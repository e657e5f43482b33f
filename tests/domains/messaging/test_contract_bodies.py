"""The four bodies that the contract shows, with all their fields, under an envelope of the five required tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import MakeWorld
from tests.domains.governance.conftest import GovernanceClient
from tests.domains.messaging.conftest import Post
from tests.patience import soon
from tests.requirements import requirement


@pytest.fixture
async def complete(make_world: MakeWorld, tmp_path: Path, model_cache: Path) -> Post:
    models = tmp_path / "index" / "models"
    models.parent.mkdir(mode=0o700)
    models.symlink_to(model_cache)
    return Post(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL=""))


@requirement("atp.contract-bodies")
async def test_kernel_execute(post: Post) -> None:
    ann = await post.world.register("ann", capabilities=["echo"])
    wanted: dict[str, Any] = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}
    task = {"id": str(uuid4()), **wanted, "timeout_seconds": 30, "agent_preference": None}
    message_id = await post.send({"task": task})
    await post.complete(await post.claimed(ann))
    answer = await post.over(message_id)
    assert (answer["response"]["task_id"], answer["response"]["status"]) == (task["id"], "completed")


@requirement("atp.contract-bodies")
async def test_memory_query(complete: Post) -> None:
    body = {"query_type": "semantic", "text": "purring animals", "top_k": 5}
    filters = {"hebbian_weight_min": 0.5, "created_after": "2025-01-01T00:00:00Z"}
    frontmatter = {"hebbian_weights": {str(uuid4()): 0.75}, "created_at": "2026-01-01T00:00:00Z"}
    note = {"path": "cats.md", "content": "The kitten purred.\n", "frontmatter": frontmatter}
    await complete.do(note, "memory", "create")
    memory = complete.world.kernel.memory
    assert memory is not None
    await soon(lambda: memory.default.embeddings.estimate_ready_at() is None)
    found = await complete.do({**body, "filters": filters}, "memory", "query")
    assert [match["path"] for match in found["matches"]] == ["cats.md"]


@requirement("atp.contract-bodies")
async def test_registry_update(post: Post) -> None:
    ann = await post.world.register("ann")
    operations = [{"agent_id": ann, "field": "accuracy_score", "value": 0.9}]
    done = await post.do({"operations": operations}, "registry", "update", mode="batch")
    assert (done["succeeded"], done["failed"]) == (1, 0)


@requirement("atp.contract-bodies")
async def test_governance_propose_update(post: Post) -> None:
    governance = GovernanceClient(post.world)
    agent = await governance.register_trusted(0.95)
    taken = (await governance.post("checkpoints", {"agent_id": agent})).json()["checkpoint_id"]
    changes = {"files_modified": ["a.py"], "lines_added": 10, "lines_deleted": 2}
    proposal = {"update_id": str(uuid4()), "agent_id": agent, "update_type": "patch", "description": "Less waste."}
    body = {**proposal, "changes": changes, "checkpoint_id": taken}
    told = await post.do(body, "governance", "propose_update", mode="async")
    assert (told["update_id"], told["status"]) == (proposal["update_id"], "submitted")
