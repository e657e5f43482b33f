"""A place in a trace is carried on: to providers, to the agents' endpoints, and to workers."""

from __future__ import annotations

import pytest

from stentor.core import trace_context
from tests.domains.llm.conftest import Gate, asking
from tests.domains.llm.test_agents import sailor
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement

HERE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
PLACE = HERE["traceparent"]


@requirement("http.traceparent-carried")
async def test_a_call_of_a_provider_carries_the_place_of_the_request(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm()
    for path, body in (("/api/v1/llm/chat", asking()), ("/v1/chat/completions", asking(stream=True))):
        await world.admin.post(path, json=body, headers=HERE)
        assert upstream.asked[-1]["headers"]["traceparent"] == PLACE
    await world.admin.post("/api/v1/llm/chat", json=asking())
    assert "traceparent" not in upstream.asked[-1]["headers"]


@requirement("http.traceparent-carried")
async def test_a_task_carries_the_place_of_its_submit_wherever_it_is_done(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    await sailor(world)
    await world.register("caller", capabilities=["call"], runtime={"kind": "http", "endpoint": f"{upstream.url}/call"})
    worker = await world.register("worker", capabilities=["work"])
    for capability in ("explain", "call", "work"):
        body = {"type": capability, "input": "x", "required_capabilities": [capability], "id": capability}
        assert (await world.admin.post("/api/v1/tasks", json=body, headers=HERE)).status_code == 202
        again = {"traceparent": PLACE.replace("4bf9", "5bf9")}
        assert (await world.admin.post("/api/v1/tasks", json=body, headers=again)).status_code == 202
        if capability != "work":
            await world.ended(capability)
            assert upstream.asked[-1]["headers"]["traceparent"] == PLACE
    assert (await world.claim(worker))["metadata"]["traceparent"] == PLACE


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        PLACE.upper(),
        PLACE[:-1],
        PLACE + "-00",
        "ff" + PLACE[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        PLACE + "\n",
    ],
)
def test_what_is_no_place_in_a_trace_is_passed_over(wrong: str) -> None:
    assert trace_context.parse_traceparent(wrong) is None


def test_work_outside_of_a_request_carries_nothing() -> None:
    assert trace_context.outbound_headers() == {}
    with trace_context.TraceparentScope(PLACE):
        assert trace_context.outbound_headers() == HERE
    assert trace_context.outbound_headers() == {}
