"""Lists, counts and activity over HTTP while the database holds very many tasks."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from bench.dashboard import filled
from bench.dashboard.rows import DAYS, TENANTS
from bench.figures import Figure, at_most, number, percentile
from bench.service import Client, serving
from bench.sizes import Scale, say
from stentor.core.clock import DAY, SECOND, SystemClock, format_iso
from stentor.web.wire import encode_cursor

TITLE = "lists and activity in a large database"
STATUSES = ("completed", "failed", "aborted", "cancelled", "queued", "executing", "pending_approval")
Draw = Callable[[], str]


@dataclass(frozen=True)
class Known:
    """What the queries are drawn from, read from the database itself."""

    agents: list[str]
    rarest: str
    places: list[tuple[int, str]]
    sampled: list[str]
    now: int


def run(scale: Scale) -> list[Figure]:
    kept = nullcontext(scale.cache) if scale.cache else scale.scratch()
    with kept as folder:
        data = filled.database(folder, scale.rows)
        known = _known(data / "stentor.db")
        size = (data / "stentor.db").stat().st_size / 1e9
        with serving(data) as service, service.connect() as client:
            return [_figure(client, name, draw, scale, size) for name, draw in queries(known).items()]


def _known(path: Path) -> Known:
    with closing(sqlite3.connect(path)) as db:
        query = (
            "select agent_id, sum(n) from task_counts where tenant = ? and agent_id <> '' group by 1 order by 2 desc"
        )
        agents = [row[0] for row in db.execute(query, TENANTS[:1])]
        query = "select created_at, task_id from tasks where tenant = ? and rowid % 997 = 0"
        places = db.execute(query, TENANTS[:1]).fetchall()
    return Known(agents, agents[-1], places, filled.sampled_ids(path, 2_000), SystemClock().now())


def queries(known: Known) -> dict[str, Draw]:
    """Kind of query to a function that draws one of them: a path with its query."""
    dice = random.Random(11)

    def agent() -> str:
        return dice.choice(known.agents)

    def status() -> str:
        return dice.choice(STATUSES)

    def cursor() -> str:
        return encode_cursor(*dice.choice(known.places))

    def since() -> str:
        return format_iso(known.now - dice.randrange(60 * SECOND, DAYS * DAY))

    return {
        "first page of 100": lambda: _list(),
        "page after a cursor anywhere": lambda: _list(cursor=cursor()),
        "count alone (`limit=1`)": lambda: _list(limit=1),
        "by status": lambda: _list(status=status()),
        "by status, after a cursor": lambda: _list(status=dice.choice(STATUSES[:4]), cursor=cursor()),
        "by agent": lambda: _list(agent_id=agent()),
        "by agent, after a cursor": lambda: _list(agent_id=agent(), cursor=cursor()),
        "by agent and status": lambda: _list(agent_id=agent(), status=status()),
        "by the rarest agent and status": lambda: _list(agent_id=known.rarest, status=status()),
        "since a time": lambda: _list(created_after=since()),
        "since a time, by status": lambda: _list(created_after=since(), status=status()),
        "since a time, by agent": lambda: _list(created_after=since(), agent_id=agent()),
        "since a time, by agent and status": lambda: _list(created_after=since(), agent_id=agent(), status=status()),
        "offset 1,000": lambda: _list(offset=1_000),
        "offset 10,000": lambda: _list(offset=10_000),
        "offset 100,000": lambda: _list(offset=100_000),
        "page of 1,000": lambda: _list(limit=1_000),
        "one task": lambda: f"/api/v1/tasks/{dice.choice(known.sampled)}",
        "activity of a task": lambda: f"/api/v1/tasks/{dice.choice(known.sampled)}/activity",
    }


def _list(**parameters: str | int) -> str:
    return f"/api/v1/tasks?{urlencode(parameters)}"


def _figure(client: Client, name: str, draw: Draw, scale: Scale, size: float) -> Figure:
    count = scale.pick(300, 20)
    for path in (draw() for _ in range(5)):
        client.send("GET", path)
    waits = list(_timed(client, draw, count))
    how = f"{count} requests one by one on one connection, drawn at random; {scale.rows:,} tasks, {size:.2f} GB"
    say(f"lists: {name}: p95 {percentile(waits, 0.95):.1f} ms")
    return Figure(f"{name} p95", percentile(waits, 0.95), "ms", how, at_most(20), f"p50 {number(median(waits))}")


def _timed(client: Client, draw: Draw, count: int) -> Iterator[float]:
    """Milliseconds of each request."""
    for _ in range(count):
        path = draw()
        started = time.perf_counter()
        client.send("GET", path)
        yield 1000 * (time.perf_counter() - started)
