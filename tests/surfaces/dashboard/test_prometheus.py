"""The metrics backend: a scripted one that is well, down, slow, refuses, or talks rubbish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.surfaces.dashboard import wire
from stentor.surfaces.dashboard.prometheus import PrometheusClient
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving
from tests.surfaces.dashboard.board import Board

PATH = "/api/monitoring/prometheus"
ALERT = {"labels": {"alertname": "Stuck", "job": "stentor"}, "activeAt": "2026-11-20T10:00:00Z", "value": "1e+00"}
RULES = {
    "status": "success",
    "data": {
        "groups": [
            {
                "name": "g",
                "rules": [
                    {
                        "type": "alerting",
                        "name": "Stuck",
                        "state": "firing",
                        "labels": {"severity": "page"},
                        "alerts": [{**ALERT, "state": "firing", "annotations": {"summary": "x"}}],
                    },
                    {"type": "alerting", "name": "Slow", "state": "unknown"},
                    {"type": "recording", "name": "sum", "query": "1"},
                ],
            },
            {"name": "h", "rules": [{"type": "alerting", "name": "Late", "state": "pending", "labels": {}}]},
        ]
    },
}
TARGETS = {
    "status": "success",
    "data": {
        "activeTargets": [
            {
                "labels": {"job": "stentor", "instance": "a:8080"},
                "scrapeUrl": "http://scraper:hunter2@a:8080/metrics?token=hunter2",
                "lastError": "",
                "health": "up",
            },
            {"labels": {"job": "node"}, "scrapeUrl": "http://b/metrics", "lastError": "refused", "health": "down"},
        ]
    },
}


@dataclass
class Backend:
    """`answers` are what it says, by the path; `asked` what was asked for."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    slow: bool = False

    def say(self, path: str, body: Any, status: int = 200, **headers: str) -> None:
        self.answers[path] = Answer(status, body, headers)

    def answer(self, asked: Asked, _: int) -> Answer:
        if self.slow:
            self.stalled.wait(60)
        return self.answers[asked.path.partition("?")[0]]


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    made.say("/api/v1/rules", RULES)
    made.say("/api/v1/targets", TARGETS)
    with serving(made.answer) as (made.url, made.asked):
        yield made
        made.stalled.set()


@requirement("dashboard.metrics-snapshot", "dashboard.metrics-settings", "dashboard.metrics-no-caller-input")
async def test_alert_rules_and_targets_are_those_of_the_backend(make_board: Any, backend: Backend) -> None:
    board: Board = await make_board(SERVICE_METRICS_URL=f"{backend.url}/")
    found = await board.get(PATH)
    wire.Metrics.model_validate(found)
    assert (found["available"], found["url"]) == (True, backend.url)
    shown = {"labels": ALERT["labels"], "active_at": ALERT["activeAt"], "value": "1e+00"}
    assert found["alerts"] == [
        {"name": "Stuck", "state": "firing", "severity": "page", "active": [shown]},
        {"name": "Slow", "state": "inactive", "severity": None, "active": []},
        {"name": "Late", "state": "pending", "severity": None, "active": []},
    ]
    assert found["targets"] == [
        {"job": "stentor", "health": "up", "scrape_url": "http://a:8080/metrics", "last_error": None},
        {"job": "node", "health": "down", "scrape_url": "http://b/metrics", "last_error": "refused"},
    ]


@requirement("dashboard.metrics-no-caller-input")
async def test_nothing_of_the_caller_reaches_the_backend(make_board: Any, backend: Backend) -> None:
    board: Board = await make_board(SERVICE_METRICS_URL=backend.url)
    answer = await board.http.get(
        PATH, params={"type": "record", "state": "../../admin"}, headers={"X-Secret": "hunter2", "Cookie": "a=hunter2"}
    )
    assert answer.json()["available"] is True
    assert sorted(one.path for one in backend.asked) == ["/api/v1/rules?type=alert", "/api/v1/targets?state=active"]
    for one in backend.asked:
        assert "hunter2" not in str(one.headers)
        assert not {"x-api-key", "cookie", "x-secret", "authorization"} & set(one.headers)


RUBBISH: dict[str, Any] = {
    "no JSON": b"<html>",
    "empty": b"",
    "not UTF-8": b'{"status": "\xff"}',
    "another shape": {"status": "success", "data": {"groups": "none"}},
    "a list": [],
    "nothing": None,
    "an error": {"status": "error", "errorType": "bad_data", "error": "x"},
    "an error with data": {**RULES, "status": "error"},
    "deep": b"[" * 100_000,
    "deep below a field": b'{"status": "success", "x": ' + b"[" * 100_000,
    "huge": b'{"status": "success", "x": "' + b"x" * 17_000_000,
}


@requirement("dashboard.metrics-never-5xx")
@pytest.mark.parametrize("body", RUBBISH.values(), ids=RUBBISH)
@pytest.mark.parametrize("view", ["rules", "targets"])
async def test_rubbish_makes_it_unavailable(backend: Backend, view: str, body: Any) -> None:
    backend.say(f"/api/v1/{view}", body)
    prometheus = PrometheusClient(backend.url, 20)
    try:
        assert await prometheus.fetch_snapshot() == {
            "available": False,
            "url": backend.url,
            "alerts": [],
            "targets": [],
        }
    finally:
        await prometheus.close()


@requirement("dashboard.metrics-never-5xx")
@pytest.mark.parametrize("status", [204, 301, 302, 400, 401, 404, 429, 500, 503])
async def test_what_is_no_answer_makes_it_unavailable(backend: Backend, status: int) -> None:
    backend.say("/api/v1/targets", b"" if status == 204 else b"no", status, Location=f"{backend.url}/api/v1/rules")
    prometheus = PrometheusClient(backend.url, 20)
    try:
        assert (await prometheus.fetch_snapshot())["available"] is False
    finally:
        await prometheus.close()
    asked = [one.path.partition("?")[0] for one in backend.asked]  # both at once, and no place that it was sent to
    assert asked.count("/api/v1/targets") == 1
    assert asked.count("/api/v1/rules") <= 1


@requirement("dashboard.metrics-never-5xx", "dashboard.metrics-settings")
async def test_a_slow_backend_is_left_after_the_timeout(make_board: Any, backend: Backend) -> None:
    backend.slow = True
    board: Board = await make_board(SERVICE_METRICS_URL=backend.url, SERVICE_METRICS_TIMEOUT="0.1")
    found = await board.get(PATH)
    assert found == {"available": False, "url": backend.url, "alerts": [], "targets": []}
    assert (await board.get("/api/monitoring/governance"))["stores"]["agent_registry"] is True


@requirement("dashboard.metrics-never-5xx")
async def test_a_backend_that_is_down_or_not_there_is_not_available(make_board: Any) -> None:
    board: Board = await make_board(SERVICE_METRICS_URL="http://127.0.0.1:9")
    assert await board.get(PATH) == {"available": False, "url": "http://127.0.0.1:9", "alerts": [], "targets": []}
    without: Board = await make_board(board.world)
    assert await without.get(PATH) == {"available": False, "url": None, "alerts": [], "targets": []}


async def test_a_backend_that_comes_back_is_shown_again(make_board: Any, backend: Backend) -> None:
    board: Board = await make_board(SERVICE_METRICS_URL=backend.url)
    backend.say("/api/v1/rules", b"", 503)
    assert (await board.get(PATH))["available"] is False
    backend.say("/api/v1/rules", RULES)
    assert (await board.get(PATH))["available"] is True


@requirement("dashboard.metrics-settings")
def test_the_timeout_is_three_seconds_unless_set_and_the_address_must_be_one() -> None:
    assert settings.load({}).dashboard.metrics_timeout_seconds == 3.0
    assert (
        settings.load({"SERVICE_METRICS_URL": "https://m.example/prom/"}).dashboard.metrics_url
        == "https://m.example/prom"
    )
    for wrong in (
        "m.example",
        "ftp://m.example",
        "http://",
        "http://u:p@m.example",
        "http://m.example?x=1",
        "http://m.example/#x",
        "http://m.example:99999",
        "http://m exa",
    ):
        with pytest.raises(StartRefused, match="SERVICE_METRICS_URL"):
            settings.load({"SERVICE_METRICS_URL": wrong})
    for wrong in ("0", "61", "x", "nan"):
        with pytest.raises(StartRefused, match="SERVICE_METRICS_TIMEOUT"):
            settings.load({"SERVICE_METRICS_TIMEOUT": wrong})
