"""The fixed window per key, on a clock that the tests move."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from starlette.types import ASGIApp

from stentor.web.middleware import UNLIMITED_CALLS, RateLimiter
from tests.conftest import MakeWorld
from tests.requirements import requirement
from tests.surfaces.gateway.promised import listed
from tests.surfaces.gateway.small import build, client

THINGS, HEALTH = "/api/v1/things", "/health"
START = 1_800_000_000.25
DOCS = Path(__file__).parents[3] / "docs"


class Seconds:
    """A clock of whole and part seconds."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


async def statuses(app: ASGIApp, times: int, path: str = THINGS, key: str = "key-one") -> list[int]:
    async with client(app, key) as http:
        return [(await http.get(path)).status_code for _ in range(times)]


def used_up(codes: Iterable[int]) -> tuple[int, int]:
    codes = list(codes)
    return codes.count(200), codes.count(429)


@requirement("http.rate-limit-window")
async def test_a_hundred_requests_a_minute_pass_and_the_next_does_not(seconds: Seconds) -> None:
    app = build(RateLimiter(100, seconds))
    codes = await statuses(app, 105)
    assert codes == [200] * 100 + [429] * 5
    seconds.now += 59.9
    assert await statuses(app, 1) == [429], "no burst, and no sliding"
    seconds.now += 0.2
    assert used_up(await statuses(app, 101)) == (100, 1)


@requirement("http.rate-limit-window")
async def test_a_clock_that_is_set_back_makes_no_window_longer(seconds: Seconds) -> None:
    wall = Seconds()
    app = build(RateLimiter(2, seconds, wall))
    assert await statuses(app, 3) == [200, 200, 429]
    wall.now -= 365 * 86_400
    seconds.now += 10
    async with client(app, "key-one") as http:
        headers = (await http.get(THINGS)).headers
    assert (headers["Retry-After"], headers["X-RateLimit-Reset"]) == ("50", str(int(wall.now) + 51))
    seconds.now += 50.1
    assert await statuses(app, 1) == [200]


@requirement("http.rate-limit-window")
async def test_the_window_is_fixed_and_begins_with_its_first_request(seconds: Seconds) -> None:
    app = build(RateLimiter(2, seconds))
    assert await statuses(app, 1) == [200]
    seconds.now += 59
    assert await statuses(app, 2) == [200, 429]
    seconds.now += 1
    assert await statuses(app, 3) == [200, 200, 429]


@requirement("http.rate-limit-headers")
async def test_a_counted_answer_says_what_is_left_and_until_when(seconds: Seconds) -> None:
    async with client(build(RateLimiter(3, seconds, seconds))) as http:
        await http.get(THINGS)
        seconds.now += 20
        headers = (await http.get("/api/v1/nothing")).headers
    assert headers["X-RateLimit-Limit"] == "3"
    assert headers["X-RateLimit-Remaining"] == "1"
    assert headers["X-RateLimit-Reset"] == str(int(START) + 61), "the second in which the window has ended"
    assert headers["RateLimit-Policy"] == '"default";q=3;w=60'
    assert headers["RateLimit"] == '"default";r=1;t=40'
    assert "Retry-After" not in headers


@requirement("http.rate-limit-429-body", "http.rate-limit-headers")
async def test_429_has_its_own_body_and_says_when_to_come_back(seconds: Seconds) -> None:
    async with client(build(RateLimiter(1, seconds))) as http:
        await http.get(THINGS)
        seconds.now += 12.5
        answer = await http.get(THINGS, headers={"Accept": "application/problem+json"})
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/json")
    assert set(body) == {"success", "code", "error", "message"}
    assert (body["success"], body["code"]) == (False, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == "48"
    assert answer.headers["X-RateLimit-Remaining"] == "0"
    assert re.fullmatch(r'"default";r=0;t=48', answer.headers["RateLimit"])
    assert answer.headers["X-Request-Id"]


@requirement("http.rate-limit-429-body")
async def test_a_key_with_too_many_streams_gets_the_same_429() -> None:
    async with client(build()) as http:
        answer = await http.get("/api/v1/raise/throttled")
    assert answer.status_code == 429
    assert set(answer.json()) == {"success", "code", "error", "message"}
    assert answer.headers["Retry-After"] == "1"


@requirement("http.rate-limit-exempts-health")
async def test_health_is_never_limited_and_does_not_count(seconds: Seconds) -> None:
    app = build(RateLimiter(2, seconds))
    assert await statuses(app, 5, HEALTH) == [200] * 5
    assert await statuses(app, 3) == [200, 200, 429]
    async with client(app) as http:
        answer = await http.get(HEALTH)
    assert answer.status_code == 200
    assert "X-RateLimit-Limit" not in answer.headers


@requirement("http.rate-limit-per-key-after-auth")
async def test_each_key_has_a_budget_of_its_own(seconds: Seconds) -> None:
    app = build(RateLimiter(2, seconds))
    assert await statuses(app, 3) == [200, 200, 429]
    assert await statuses(app, 3, key="key-two") == [200, 200, 429]


@requirement("http.rate-limit-per-key-after-auth")
async def test_refused_credentials_count_for_nobody(seconds: Seconds) -> None:
    app = build(RateLimiter(2, seconds))
    assert await statuses(app, 5, key="wrong") == [401] * 5
    assert await statuses(app, 5, key="") == [401] * 5
    assert await statuses(app, 3) == [200, 200, 429]


@requirement("http.rate-limit-per-key-after-auth")
async def test_whoever_is_known_is_counted_even_where_nothing_is_found(seconds: Seconds) -> None:
    app = build(RateLimiter(2, seconds))
    assert await statuses(app, 3, "/api/v1/nothing") == [404, 404, 429]


@requirement("http.rate-limit-per-key-after-auth")
async def test_a_new_process_counts_from_nothing_and_two_share_no_budget(seconds: Seconds) -> None:
    one, two = build(RateLimiter(1, seconds)), build(RateLimiter(1, seconds))
    assert [await statuses(app, 2) for app in (one, two)] == [[200, 429]] * 2


@requirement("http.rate-limit-setting")
async def test_the_setting_is_the_size_of_the_window(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    answers = [await world.clients["READER"].get("/api/v1/tasks") for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert {a.headers["X-RateLimit-Limit"] for a in answers} == {"3"}
    assert (await world.admin.get("/api/v1/tasks")).status_code == 200, "another key"
    assert (await world.clients["READER"].get("/api/v1/health/detailed")).status_code == 200


@requirement("http.rate-limit-setting")
async def test_0_switches_the_limit_off(seconds: Seconds) -> None:
    app = build(RateLimiter(0, seconds))
    assert await statuses(app, 150) == [200] * 150
    async with client(app) as http:
        headers: httpx.Headers = (await http.get(THINGS)).headers
    assert not [name for name in headers if "ratelimit" in name.lower()]


@requirement("http.rate-limit-spares-workers")
async def test_the_calls_of_a_worker_do_not_use_up_its_requests(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    for number in range(20):
        body = {"epoch": epoch, "key": f"s{number}", "name": "s", "value": 1}
        assert (await world.admin.post(f"/api/v1/tasks/{task_id}/steps", json=body)).status_code == 200
        beat = await world.admin.post(f"/api/v1/tasks/{task_id}/heartbeat", json={"epoch": epoch})
        assert beat.status_code == 200
    assert (await world.admin.get("/api/v1/tasks")).status_code == 200
    assert (await world.admin.get("/api/v1/tasks")).status_code == 429
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/heartbeat", json={"epoch": epoch})).status_code == 200


@requirement("http.rate-limit-spares-workers")
async def test_calls_of_a_worker_that_fail_are_limited(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    statuses = [(await world.admin.post("/api/v1/tasks/x/heartbeat", json={"epoch": 1})).status_code for _ in range(5)]
    assert statuses == [404, 404, 404, 429, 429]
    assert (await world.admin.get("/api/v1/tasks")).status_code == 200, "counted apart"


@requirement("http.rate-limit-spares-workers")
async def test_that_a_task_is_no_longer_the_workers_does_not_count(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    await world.register()
    heartbeat = f"/api/v1/tasks/{await world.submit()}/heartbeat"
    assert {(await world.admin.post(heartbeat, json={"epoch": 1})).status_code for _ in range(5)} == {409}


@requirement("http.rate-limit-spares-workers")
async def test_a_worker_may_use_its_journal_as_often_as_it_needs(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    agent = await world.register()
    steps = f"/api/v1/tasks/{quote(await world.submit(id='trip/1'), safe='')}/steps"
    body = {"epoch": (await world.claim(agent))["epoch"], "key": "orders/1", "name": "1", "value": "x" * 6_000}
    for _ in range(5):
        assert (await world.admin.post(steps, json=body)).status_code == 200
        assert (await world.admin.get(f"{steps}?limit=1000")).status_code == 200
        assert (await world.admin.get(f"{steps}/orders%2F1")).status_code == 200


@requirement("http.rate-limit-spares-workers")
def test_every_call_of_a_worker_that_the_guides_list_or_that_takes_an_epoch_is_spared() -> None:
    guides = "".join((DOCS / name).read_text() for name in ("workers.md", "steps-over-http.md"))
    calls = [call.replace(" /", " /api/v1/") for call in re.findall(r"^\| `([A-Z]+ /[^`]+)` \|", guides, re.MULTILINE)]
    assert len(calls) == 11, "a table was not found, or has a new line"
    calls += [line.partition(" takes ")[0] for line in listed() if line.endswith(" takes .epoch")]
    examples = {call: re.sub(r"\{\w+\}", "a1", call) for call in calls}
    limited = {call for call in calls if not any(pattern.fullmatch(examples[call]) for pattern in UNLIMITED_CALLS)}
    assert limited == {"POST /api/v1/tasks/{task_id}/grants"}, "delegation is for anybody"


@requirement("http.rate-limit-spares-sessions")
async def test_a_program_may_use_its_sessions_as_often_as_it_wants(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="3")
    session = "/api/v1/sessions/trip%2F1"
    assert (await world.admin.post("/api/v1/sessions", json={"id": "trip/1"})).status_code == 201
    for number in range(10):
        assert (await world.admin.put(f"{session}/values", json={"values": {"at": number}})).status_code == 200
        assert (await world.admin.get(f"{session}/values?key=at")).status_code == 200
    unknown = [(await world.admin.get("/api/v1/sessions/no/items")).status_code for _ in range(5)]
    assert unknown == [404, 404, 404, 429, 429]
    beat = await world.admin.post("/api/v1/tasks/x/heartbeat", json={"epoch": 1})
    assert beat.status_code == 404, "a program that asks for unknown sessions harms no worker"
