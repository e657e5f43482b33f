"""The dashboard's pages over many tasks and agents: what the service takes, and what a browser shows of it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Set
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode, urlsplit

from bench.dashboard import board, browsing
from bench.figures import Figure, at_most, number, percentile
from bench.service import KEY, Service, serving
from bench.sizes import Scale, say
from stentor.domains.tasks.reading.chart_queries import CHART_RANGES
from stentor.surfaces.dashboard.pages import app
from stentor.surfaces.dashboard.site.page import CACHE_SECONDS

TITLE = "pages of the dashboard"
SETTINGS = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1"}
STREAMS = ("/live", "/tasks/{task_id}/stream")
"""Open as long as a page is; no pages."""
VARIANTS = (
    "/?range=7d", "/series?range=24h", "/series?range=7d", "/tasks?status=failed", "/tasks?agent={agent_id}",
    "/tasks?agent={agent_id}&status=failed", "/tasks?q={prefix}", "/tasks?q={nobody}", "/tasks?cursor={cursor}",
    "/agents?status=quarantined", "/agents?q=default-7", "/agents?alert=open", "/governance?status=all",
    "/memory?q={words}&mode=keyword", "/memory?q={words}&mode=semantic", "/memory?q={words}&mode=hybrid",
    "/models?days=30",
)  # fmt: skip
QUERIES = {"/find": "q={task_id}", "/memory/note": "path={note}", "/memory/open": "name={note}&from={note}"}
"""Of routes that need one."""
PARTS = ("/alerts", "/memory/health")
"""Asked for by a page, as a part of it."""
PART = {"HX-Request": "true"}
Draw = Callable[[], str]
NAMED = re.compile(r"\{(\w+)(?::\w+)?\}")


class Browser:
    """A kept connection with the cookie of somebody who signed in, as a browser has it."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._http = HTTPConnection(str(parts.hostname), parts.port, timeout=120)
        self._headers = {"Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
        answer, _ = self._ask("POST", "/sign-in", urlencode({"key": KEY}))
        self.cookie = (answer or "").partition(";")[0]
        self._headers["Cookie"] = self.cookie

    def get(self, path: str) -> bytes:
        return self._ask("GET", path)[1]

    def close(self) -> None:
        """The connection; the next request opens another."""
        self._http.close()

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[str | None, bytes]:
        """The cookie that is set, and the body. Raises RuntimeError for a refusal."""
        self._http.request(method, path, body, self._headers | (PART if path in PARTS else {}))
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status >= 400 or "/sign-in" in answer.headers.get("location", ""):
            raise RuntimeError(f"{method} {path}: {answer.status} {content.decode(errors='replace')[:300]}")
        return answer.headers["set-cookie"], content


def run(scale: Scale) -> list[Figure]:
    rows, agents = scale.pick(100_000, 2_000), scale.pick(1_000, 60)
    with scale.scratch() as folder:
        data = board.database(folder, rows, agents)
        with serving(data, SETTINGS) as service:
            with service.connect() as client:
                ids = board.known(data)
                ids |= board.populate(client, ids["agent_id"])
            _quiet(service)
            browser = Browser(service.dashboard)
            what = f"{rows:,} tasks, {agents:,} agents"
            figures = [_figure(browser, name, draw, scale, what) for name, draw in draws(ids).items()]
            figures += _stale(browser, scale)
            task = ids["task_id"][-1]
            return [*figures, *browsing.figures(service, data / "stentor.db", browser.cookie, task, scale)]


def draws(ids: dict[str, list[str]]) -> dict[str, Draw]:
    """Address to a function that fills it in."""
    dice = random.Random(17)
    words = ("agent", "task", "route", "trust", "queue", "lease", "epoch", "outcome")
    found: dict[str, Draw] = {
        "prefix": lambda: dice.choice(ids["task_id"])[:10],
        "nobody": lambda: f"{dice.randrange(10**12)}-no",
        "words": lambda: "+".join(dice.sample(words, 2)),
        "note": lambda: f"note-{dice.randrange(board.NOTES)}.md",
    }
    wanted, left_out = addresses(found.keys() | ids.keys())
    for address in left_out:
        say(f"pages: {address} is left out: the bench has no value for it")
    return {address: _drawn(address, dice, ids, found) for address in wanted}


def addresses(known: Set[str]) -> tuple[list[str], list[str]]:
    """Addresses of all pages whose parameters are known, and those of the others, which are left out."""
    paths = [path for method, path, _ in app.ROUTES if method == "GET" and path not in STREAMS]
    paths = [f"{path}?{QUERIES[path]}" if path in QUERIES else path for path in paths]
    wanted = sorted(NAMED.sub(r"{\1}", path) for path in (*paths, *VARIANTS))
    found = [path for path in wanted if set(NAMED.findall(path)) <= known]
    return found, [path for path in wanted if path not in found]


def _drawn(address: str, dice: random.Random, ids: dict[str, list[str]], others: dict[str, Draw]) -> Draw:
    def value(found: re.Match[str]) -> str:
        return others[found[1]]() if found[1] in others else dice.choice(ids[found[1]])

    return lambda: NAMED.sub(value, address)


def _figure(browser: Browser, name: str, draw: Draw, scale: Scale, what: str) -> Figure:
    count = scale.pick(100, 5)
    sizes = [len(browser.get(draw())) for _ in range(5)]
    waits = list(_timed(browser, draw, count))
    p95 = percentile(waits, 0.95)
    note = f"p50 {number(median(waits))}, slowest {number(max(waits))}, {number(max(sizes) / 1000)} kB"
    say(f"pages: {name}: p95 {p95:.1f} ms ({note})")
    how = f"{count} requests one by one; {what}"
    return Figure(f"`{name}` p95", p95, "ms", how, at_most(100), note)


def _stale(browser: Browser, scale: Scale) -> Iterator[Figure]:
    """What is kept for all readers for some seconds, when it is not there any more."""
    kept = ("/", *(f"/series?range={name}" for name in CHART_RANGES))
    waits: dict[str, list[float]] = {path: [] for path in kept}
    for _ in range(scale.pick(9, 1)):
        browser.close()  # the service would, meanwhile
        time.sleep(CACHE_SECONDS + 0.5)
        for path in kept:
            waits[path] += _timed(browser, lambda path=path: path, 1)
    for path, found in waits.items():
        say(f"pages: {path} after a pause: slowest {max(found):.1f} ms")
        how = f"{len(found)} requests, each when nothing is kept any more; the slowest"
        yield Figure(f"`{path}` after a pause", max(found), "ms", how, at_most(100), f"p50 {number(median(found))}")


def _timed(browser: Browser, draw: Draw, count: int) -> Iterator[float]:
    """Milliseconds of each request, to the last byte."""
    for _ in range(count):
        path = draw()
        started = time.perf_counter()
        browser.get(path)
        yield 1000 * (time.perf_counter() - started)


def _quiet(service: Service) -> None:
    """Until what the service does after a start with so many rows is over: it takes less than a tenth of a core."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        before = _ticks(service)
        time.sleep(2)
        if _ticks(service) - before < 20:
            return
    raise RuntimeError("the service does not come to rest")


def _ticks(service: Service) -> int:
    """Hundredths of a second of processor time."""
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
