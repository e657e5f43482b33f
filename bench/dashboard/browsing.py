"""The pages in Chromium: first paint, bytes, and a page that hears of very many events. Left out without Chromium."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.dashboard.board import CAPABILITY
from bench.figures import Figure, at_least, at_most, number, percentile, spread
from bench.service import Service
from bench.sizes import Scale, say

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
EVENTS_PER_TASK = 6
EVENTS = 500
"""Per second, while pages are live."""
SETTLED = 1_500
"""Milliseconds after its load until a page has asked for all that it asks for by itself."""
PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
    const found = list.getEntriesByName("first-contentful-paint")[0];
    if (found) done(found.startTime);
}).observe({ type: "paint", buffered: true }))"""
BYTES = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, one) => sum + one.transferSize, 0)"""
WATCH = """(seconds) => { window.watched = new Promise((done) => {
    const late = [], long = [];
    new PerformanceObserver((list) => long.push(...list.getEntries().map((one) => one.duration)))
        .observe({ type: "longtask" });
    performance.clearResourceTimings();
    const end = performance.now() + 1000 * seconds;
    const waits = () => performance.getEntriesByType("resource")
        .filter((one) => one.initiatorType === "xmlhttprequest").map((one) => one.duration);
    const next = () => {
        const due = performance.now() + 50;
        setTimeout(() => {
            late.push(Math.max(0, performance.now() - due));
            if (performance.now() < end) next(); else done({ late, long, waits: waits() });
        }, 50);
    };
    next();
}); }"""
CLICKS = """addEventListener("click", (event) =>
    sessionStorage.setItem("clicked", performance.timeOrigin + event.timeStamp), true)"""
PLACE = """(link) => {
    const at = document.querySelector(link).getBoundingClientRect();
    return [at.x + at.width / 2, at.y + at.height / 2];
}"""
PRESSED = 0.1
"""Seconds that a person holds a button down."""
PATIENCE = 5_000
"""Milliseconds after which a click that opened nothing counts as lost."""
OPENED = """() => performance.timeOrigin + performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd
    - Number(sessionStorage.getItem("clicked"))"""


def figures(service: Service, database: Path, cookie: str, task_id: str, scale: Scale) -> list[Figure]:
    """`cookie` is of a session, as the header has it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return [_none("playwright is not installed")]
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        return [_none("there is no Chromium on the PATH")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            one = Visitor(browser, service.dashboard, cookie)
            return [*_painted(one, task_id, scale), *_live(one, service, database, scale)]
        finally:
            browser.close()


def _none(reason: str) -> Figure:
    return Figure("pages opened in Chromium", 0, "", f"left out: {reason}")


class Visitor:
    """Somebody who is signed in, with an empty cache in each context."""

    def __init__(self, browser: Browser, address: str, cookie: str) -> None:
        self._browser = browser
        self._address = address
        self._cookie = cookie

    @contextmanager
    def context(self) -> Iterator[BrowserContext]:
        made = self._browser.new_context()
        name, _, value = self._cookie.partition("=")
        made.add_cookies([{"name": name, "value": value, "url": self._address}])
        try:
            yield made
        finally:
            made.close()

    def open(self, context: BrowserContext, path: str) -> Page:
        page = context.new_page()
        page.goto(self._address + path, wait_until="load")
        return page


def _painted(one: Visitor, task_id: str, scale: Scale) -> Iterator[Figure]:
    rounds = scale.pick(9, 2)
    for name, path in (("/", "/"), ("/tasks", "/tasks"), ("one task", f"/tasks/{task_id}")):
        cold, warm, sent = [], [], []
        for _ in range(rounds):
            with one.context() as context:
                first = one.open(context, path)
                cold.append(float(first.evaluate(PAINT)))
                first.wait_for_timeout(SETTLED)
                sent.append(float(first.evaluate(BYTES)) / 1000)
                first.close()
                warm.append(float(one.open(context, path).evaluate(PAINT)))
        say(f"pages: {name}: first paint {median(cold):.0f} ms cold, {median(warm):.0f} ms warm, {median(sent):.0f} kB")
        how = "first-contentful-paint from the start of the navigation, headless Chromium; median"
        yield Figure(f"{name}: first paint, cold", median(cold), "ms", how, at_most(1_000), spread(cold))
        yield Figure(f"{name}: first paint, warm", median(warm), "ms", how, at_most(1_000), spread(warm))
        how = "the page with all that it asks for, headers included, empty cache"
        yield Figure(f"{name}: transferred", median(sent), "kB", how, at_most(300))


def _live(one: Visitor, service: Service, database: Path, scale: Scale) -> Iterator[Figure]:
    seconds, clicks = scale.pick(15, 2), scale.pick(40, 3)
    with _load(service, 4 * seconds + 2 * clicks), one.context() as context:
        context.add_init_script(CLICKS)
        pages = {path: one.open(context, path) for path in ("/", "/tasks")}
        time.sleep(1)
        before, began = _events(database), time.monotonic()
        for page in pages.values():
            page.evaluate(WATCH, seconds)
        found: dict[str, Any] = {path: page.evaluate("() => window.watched") for path, page in pages.items()}
        rate = (_events(database) - before) / (time.monotonic() - began)
        opened = [_click(pages["/tasks"], n) for n in range(clicks)]
    how = f"run-log events while / and /tasks are open for {seconds} s, from short tasks of a builtin agent"
    yield Figure("events meanwhile", rate, "/s", how, at_least(0.9 * EVENTS))
    for path, seen in found.items():
        yield from _seen(path, **seen)
    yield from _clicked([wait for wait in opened if wait is not None], clicks)


def _seen(path: str, late: list[float], long: list[float], waits: list[float]) -> Iterator[Figure]:
    note = f"p50 {number(median(late))}, slowest {number(max(late))}, {len(late)} timers"
    say(f"pages: live {path}: late p95 {percentile(late, 0.95):.1f} ms ({note}), {len(long)} long tasks")
    how = "a timer of 50 ms in the page, again and again"
    yield Figure(f"live `{path}`: timer late p95", percentile(late, 0.95), "ms", how, None, note)
    how = "`longtask` of PerformanceObserver: more than 50 ms at a stretch"
    yield Figure(f"live `{path}`: long tasks", len(long), "", how, None, f"longest {number(max(long, default=0))} ms")
    how = "what the page asks for again when it hears of a change, as the browser times it"
    note = f"{len(waits)} meanwhile, slowest {number(max(waits))}"
    yield Figure(f"live `{path}`: refresh p50", median(waits), "ms", how, None, note)


def _clicked(opened: list[float], clicks: int) -> Iterator[Figure]:
    p95, lost = percentile(opened, 0.95), clicks - len(opened)
    say(f"pages: live: a click p95 {p95:.0f} ms, {lost} of {clicks} lost")
    how = "from the click on a task's link, or on Tasks in the menu, to DOMContentLoaded of its page, meanwhile"
    note = f"p50 {number(median(opened))}, slowest {number(max(opened))}, {len(opened)} clicks"
    yield Figure("live: click to page p95", p95, "ms", how, None, note)
    how = f"of {clicks} clicks of {PRESSED} s, those that opened no page"
    yield Figure("live: clicks lost", lost, "", how)


def _click(page: Page, n: int) -> float | None:
    """Milliseconds; None for a click that was lost. To the newest task and back by the menu, in turns."""
    from playwright.sync_api import TimeoutError as Late

    link = "[data-row] a" if n % 2 == 0 and page.url.endswith("/tasks") else '.side a[href="/tasks"]'
    page.mouse.move(*page.evaluate(PLACE, link))
    try:
        with page.expect_navigation(timeout=PATIENCE):
            page.mouse.down()
            time.sleep(PRESSED)
            page.mouse.up()
    except Late:
        return None
    return float(page.evaluate(OPENED))


@contextmanager
def _load(service: Service, seconds: int) -> Iterator[None]:
    rate = EVENTS // EVENTS_PER_TASK
    words = ["paced", service.host, str(service.port), str(rate * seconds), str(rate), CAPABILITY]
    process = subprocess.Popen([sys.executable, "-m", "bench.load", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
        if process.poll() is not None:
            raise RuntimeError("the load ended before the measurement")
    finally:
        process.terminate()
        process.wait()


def _events(database: Path) -> int:
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute("select count(*) from events").fetchone()[0])
