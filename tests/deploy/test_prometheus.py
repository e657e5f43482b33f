"""The files in deploy/: valid for Prometheus, made of figures that exist, and of use against a running service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.conftest import KEYS, Service, World
from tests.domains.llm.conftest import Gate, chat, make_llm, upstream
from tests.domains.monitoring.metrics_scrape import MetricsScrape, scrape
from tests.ports import free_port
from tests.requirements import requirement
from tests.system import need

__all__ = ["make_llm", "upstream"]  # fixtures
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
BOARD = json.loads((ROOT / "deploy" / "grafana" / "stentor.json").read_text())
DEADLINE = 60
GIVEN = frozenset(("instance", "job", "le", "alertname", "alertstate", "severity"))
"""Labels that Prometheus itself sets."""
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    loaded = YAML(typ="safe").load(FOLDER / "alerts.yml")
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that show something."""
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def shown() -> dict[str, str]:
    """The expressions of the dashboard by panel and letter, with its variables filled in."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$__rate_interval", "5m")
        .replace("$instance", ".*")
        for panel in panels()
        for target in panel["targets"]
    }


def expressions() -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for rule in rules()} | shown()


def promtool(*words: str, cwd: Path) -> str:
    done = subprocess.run([need("promtool"), *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@requirement("monitoring.alerts")
def test_the_files_are_valid(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "stentor.key").write_text("some-key")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", cwd=tmp_path)
    assert f"{len(rules())} rules found" in promtool("check", "rules", "alerts.yml", cwd=tmp_path)


@requirement("monitoring.alerts")
def test_each_alert_fires_when_it_should_and_not_when_all_is_well() -> None:
    promtool("test", "rules", "alerts_test.yml", cwd=FOLDER)
    written = (FOLDER / "alerts_test.yml").read_text()
    fired = set(re.findall(r'alertname="(\w+)"', written))
    assert fired == {rule["alert"] for rule in rules()}


@requirement("monitoring.alerts")
def test_each_alert_says_how_bad_it_is_what_it_is_and_what_to_do() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert f"`{rule['alert']}`" in page, rule["alert"]


@requirement("monitoring.deployed-names-exist")
def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(shown().values())]
    with (tmp_path / "panels.yml").open("w") as file:
        YAML(typ="safe").dump({"groups": [{"name": "panels", "rules": recorded}]}, file)
    assert f"{len(recorded)} rules found" in promtool("check", "rules", "panels.yml", cwd=tmp_path)


@requirement("monitoring.deployed-names-exist")
def test_the_dashboard_is_one_that_grafana_reads() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["title"], panel["id"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


async def busy(world: World) -> MetricsScrape:
    """A scrape of a service that has done one of everything that figures are about."""
    await world.do(await world.register())
    assert (await chat(world)).status_code == 200
    return await scrape(world)


@requirement("monitoring.deployed-names-exist")
async def test_every_figure_and_label_that_an_expression_names_exists(make_llm: Gate) -> None:
    found = await busy(await make_llm(SERVICE_MEMORY="1"))
    labels: dict[str, set[str]] = {}
    for name, pairs in found.samples:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    named: set[str] = set()
    for where, expr in expressions().items():
        used = set(re.findall(r"\b(?:stentor|process)_\w+", _MATCHER.sub("", expr)))
        named |= used
        assert used <= set(labels), where
        for name, matchers in _SELECTOR.findall(expr):
            known = labels.get(name, set()) | GIVEN
            assert {label for label, _, _ in _MATCHER.findall(matchers)} <= known, where
        grouped = {one.strip() for group in _GROUPING.findall(expr) for one in group.split(",")}
        assert grouped <= GIVEN.union(*(labels[name] for name in used)), where
    assert len(named) > 30


@requirement("monitoring.deployed-names-exist")
async def test_every_label_value_that_an_expression_wants_exists(make_llm: Gate) -> None:
    found = await busy(await make_llm(SERVICE_MEMORY="1"))
    values: dict[tuple[str, str], set[str]] = {}
    for name, pairs in found.samples:
        for label, value in pairs:
            values.setdefault((name, label), set()).add(value)
    for where, expr in expressions().items():
        for name, matchers in _SELECTOR.findall(expr):
            for label, sign, wanted in _MATCHER.findall(matchers):
                if label in GIVEN or label in ("outcome", "status_class"):
                    continue  # those come with the first failure
                alternatives = set(wanted.split("|")) if sign in ("=~", "!~") else {wanted}
                assert alternatives <= values[name, label], where


@contextmanager
def prometheus(folder: Path, target: str, key: str) -> Iterator[httpx.Client]:
    """A Prometheus with the files of deploy/, but for the target and the intervals; a client of its API."""
    program = need("prometheus")
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    written = (folder / "prometheus.yml").read_text()
    assert "127.0.0.1:8080" in written
    hurried = written.replace("127.0.0.1:8080", target).replace("interval: 30s", "interval: 1s")
    (folder / "prometheus.yml").write_text(hurried)
    (folder / "stentor.key").write_text(key)
    port = free_port()
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, *words], cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=200) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def until(ask: Callable[[], Any], client: httpx.Client) -> Any:
    """The first answer that is true. Raises AssertionError with the last one."""
    ends, last = time.monotonic() + DEADLINE, None
    while time.monotonic() < ends:
        try:
            if last := ask():
                return last
        except (httpx.TransportError, ValueError):
            pass  # it is starting, and answers without JSON
        time.sleep(0.1)
    raise AssertionError(f"nothing came within {DEADLINE} s; targets: {client.get('/targets').text}")


def target_of(client: httpx.Client) -> dict[str, Any]:
    found = client.get("/targets").json()["data"]["activeTargets"]
    return dict(found[0]) if found and found[0]["health"] != "unknown" else {}


def value_of(client: httpx.Client, expr: str) -> float | None:
    found = client.get("/query", params={"query": expr}).json()["data"]["result"]
    return float(found[0]["value"][1]) if found else None


@pytest.mark.fault
@requirement("monitoring.scrape")
def test_a_prometheus_reads_a_running_service(tmp_path: Path, serve: Callable[..., Service]) -> None:
    service = serve()
    with service.client() as client:
        for n in range(3):
            body = {"type": "summarize", "input": f"One sentence. Another {n}.", "required_capabilities": ["summarize"]}
            assert client.post("/api/v1/tasks", json=body).status_code == 202
    address = service.address.removeprefix("http://")
    with prometheus(tmp_path / "prometheus", address, KEYS["READER"].split(":")[0]) as asked:
        until(lambda: target_of(asked).get("health") == "up", asked)
        done = 'stentor_task_outcomes_total{outcome_class="success"}'
        until(lambda: value_of(asked, done) == 3, asked)
        groups = until(lambda: asked.get("/rules").json()["data"]["groups"], asked)
        found = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert set(found) == {rule["alert"] for rule in rules()}
        until(lambda: all(rule["health"] == "ok" for rule in _rules(asked)), asked)
        service.kill()
        until(lambda: [rule for rule in _rules(asked) if rule["name"] == "StentorDown" and rule["alerts"]], asked)


def _rules(client: httpx.Client) -> list[dict[str, Any]]:
    return [rule for group in client.get("/rules").json()["data"]["groups"] for rule in group["rules"]]


@pytest.mark.fault
@requirement("monitoring.scrape")
def test_with_another_key_the_service_is_down_for_prometheus(tmp_path: Path, serve: Callable[..., Service]) -> None:
    address = serve().address.removeprefix("http://")
    with prometheus(tmp_path / "prometheus", address, "wrong-key") as asked:
        target = until(lambda: target_of(asked), asked)
        assert (target["health"], "401" in target["lastError"]) == ("down", True)
        assert "wrong-key" not in json.dumps(target)
