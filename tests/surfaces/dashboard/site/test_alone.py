"""The pages of a dashboard apart from its gateway, as real processes."""

from __future__ import annotations

import httpx
import pytest

from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.dashboard.test_service import QUIET, Start, alone


@requirement("dashboard.sign-in", "dashboard.calls")
@pytest.mark.fault
def test_the_pages_ask_the_gateway_of_the_folder_and_say_when_it_is_gone(serve: Start) -> None:
    service = serve(**QUIET)
    with (
        alone(service.data_dir, **service.state) as (address, _),
        httpx.Client(base_url=address, timeout=200) as browser,
    ):
        assert browser.post("/sign-in", data={"key": "wrong"}).status_code == 401
        assert browser.post("/sign-in", data={"key": service.key}).status_code == 303
        body = {"type": "summarize", "input": {"text": "It is late."}, "required_capabilities": ["summarize"]}
        with service.client() as gateway:
            task_id = gateway.post("/api/v1/tasks", json=body).json()["task_id"]
            until(lambda: gateway.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed")
        assert task_id in browser.get("/tasks").text
        assert "event: complete" in browser.get(f"/tasks/{task_id}/stream").text
        service.process.kill()
        service.process.wait()
        gone = browser.get("/tasks")
        assert gone.status_code == 503
        assert "Gateway unreachable" in gone.text
        overview = browser.get("/")
        assert overview.status_code == 200
        assert '<span class="status completed">' in overview.text
        assert "unavailable" in overview.text


@requirement("dashboard.sign-in")
def test_a_key_whose_requests_are_used_up_is_not_called_a_wrong_one(serve: Start) -> None:
    service = serve(**QUIET, SERVICE_RATE_LIMIT_PER_MINUTE="1")
    with (
        alone(service.data_dir, **service.state) as (address, _),
        httpx.Client(base_url=address, timeout=200) as browser,
    ):
        with service.client() as gateway:
            while gateway.get("/api/v1/whoami").status_code != 429:
                pass
        answer = browser.post("/sign-in", data={"key": service.key})
        assert (answer.status_code, "used up" in answer.text) == (429, True)
