"""ATP messages to the zone `sandbox`: only sandboxed agents execute their tasks."""

from __future__ import annotations

from tests.domains.messaging.conftest import Post, form, task
from tests.domains.sandbox.conftest import SandboxedService
from tests.requirements import requirement


@requirement("atp.messages-act-on-sandbox")
async def test_message_to_the_sandbox_zone_runs_a_sandboxed_agent(sandbox: SandboxedService) -> None:
    await sandbox.world.register("worker", accuracy_score=1.0, alignment_score=1.0)
    agent = await sandbox.python("answer([task['input'], os.getuid()])")
    post = Post(sandbox.world)
    reply = await post.do(task(), "sandbox", "execute")
    assert reply["result"] == ["hello", 65534]
    assert reply["assigned_agent"] == agent
    text_reply = await post.do("just text", "sandbox", "execute", specialNotes="capability=echo, type=echo")
    assert text_reply["result"] == ["just text", 65534]


@requirement("atp.messages-act-on-sandbox")
async def test_sandbox_zone_rejects_agents_without_a_sandbox(sandbox: SandboxedService) -> None:
    worker = await sandbox.world.register("worker")
    post = Post(sandbox.world)
    assert (await post.fail(task(), "sandbox", "execute"))["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    preferred = await post.fail(task(agent_preference=worker), "sandbox", "execute")
    assert preferred["code"] == "ROUTING_AGENT_INELIGIBLE"
    no_capability = await post.fail(task(required_capabilities=["fly"]), "sandbox", "execute")
    assert no_capability["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    other_action = await post.ask("send", json=form("{}", "sandbox", "list"))
    assert (other_action.status_code, other_action.json()["error"]["code"]) == (400, "INVALID_REQUEST")
