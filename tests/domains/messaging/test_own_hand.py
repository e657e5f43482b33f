"""A message moves no more of an agent's standing than its sender may."""

from __future__ import annotations

from tests.domains.governance.conftest import proposal
from tests.domains.messaging.conftest import Post, form
from tests.requirements import requirement


@requirement("registry.own-hand")
async def test_an_agents_key_with_admin_raises_itself_by_no_message(post: Post) -> None:
    agent_id = await post.world.register(key_name="boss")
    for field, value in (("accuracy_score", 1.0), ("status", "active")):
        operations = [{"agent_id": agent_id, "field": field, "value": value}]
        answer = await post.over(await post.send({"operations": operations}, "registry", "update", client="BOSS"))
        assert answer["response"]["results"][0]["error"]["code"] == "FORBIDDEN"
    draft = {"name": "puppet", "key_name": "boss", "accuracy_score": 1.0}
    assert (await post.fail(draft, "registry", "register", client="BOSS"))["code"] == "FORBIDDEN"


@requirement("governance.propose-permission")
async def test_a_message_proposes_with_the_permission_of_the_route(post: Post) -> None:
    own, other = await post.world.register(key_name="proposer"), await post.world.register(name="other")
    told = await post.do(proposal(own), "governance", "propose_update", client="PROPOSER")
    assert told["tier"] == 3
    foreign = await post.fail(proposal(other), "governance", "propose_update", client="PROPOSER")
    assert foreign["code"] == "FORBIDDEN"
    decided = form({"update_id": told["update_id"], "rationale": "Mine."}, "governance", "approve")
    assert (await post.ask("send", "PROPOSER", json=decided)).status_code == 403
    asked = form(proposal(own), "governance", "propose_update")
    assert (await post.ask("send", "BOB", json=asked)).status_code == 403
