"""ATP messages to the zone sandbox: work for caged agents alone."""

from __future__ import annotations

import pytest

from tests.domains.messaging.conftest import Post, form, task
from tests.domains.sandbox.conftest import Caged
from tests.requirements import requirement


@requirement("atp.messages-act-on-sandbox")
async def test_sandbox_execute_makes_a_caged_run(caged: Caged) -> None:
    await caged.world.register("worker", accuracy_score=1.0, alignment_score=1.0)
    agent = await caged.python("answer([task['input'], os.getuid()])")
    post = Post(caged.world)
    answer = await post.do(task(), "sandbox", "execute")
    assert answer["result"] == ["hello", 65534]
    assert answer["assigned_agent"] == agent
    plain = await post.do("just text", "sandbox", "execute", specialNotes="capability=echo, type=echo")
    assert plain["result"] == ["just text", 65534]


@requirement("atp.messages-act-on-sandbox")
@pytest.mark.parametrize("driver", ["sqlite"], indirect=True)
async def test_agents_without_a_cage_get_nothing_from_the_zone_sandbox(caged: Caged) -> None:
    worker = await caged.world.register("worker")
    post = Post(caged.world)
    assert (await post.fail(task(), "sandbox", "execute"))["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    named = await post.fail(task(agent_preference=worker), "sandbox", "execute")
    assert named["code"] == "ROUTING_AGENT_INELIGIBLE"
    nobody = await post.fail(task(required_capabilities=["fly"]), "sandbox", "execute")
    assert nobody["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    other = await post.ask("send", json=form("{}", "sandbox", "list"))
    assert (other.status_code, other.json()["error"]["code"]) == (400, "INVALID_REQUEST")
