"""deploy/caddy/Caddyfile for real: Debian's Caddy before gateways that share a database."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.populated import post
from tests.conftest import ADMIN, Service
from tests.deploy.described import DEPLOY
from tests.faults.checker import check
from tests.faults.load import Load, summaries
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.stub import Answer, serving
from tests.system import need

CADDYFILE = DEPLOY / "caddy" / "Caddyfile"
Serve = Callable[..., Service]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.only("sqlite", reason="the databases are named by each test"),
]


@contextmanager
def balancer(folder: Path, *gateways: str) -> Iterator[str]:
    """Caddy before these addresses; answers its own, once it hands requests on."""
    port = free_port()
    names = " ".join(address.removeprefix("http://") for address in gateways)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "STENTOR_SITE": f":{port}", "STENTOR_GATEWAYS": names}
    command = [need("caddy"), "run", "--config", str(CADDYFILE), "--adapter", "caddyfile"]
    with (folder / "caddy.log").open("w") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        yield until_answers(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(60)


def until_answers(address: str, process: subprocess.Popen[bytes]) -> str:
    until_then = time.monotonic() + 60
    while time.monotonic() < until_then:
        assert process.poll() is None
        try:
            if httpx.get(f"{address}/health", timeout=200).status_code == 200:
                return address
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the balancer hands nothing on")


def instances(serve: Serve, tmp_path: Path, url: str) -> list[Service]:
    """Two gateways on one database, with the same keys."""
    common = {"SERVICE_DATABASE_URL": url, "SERVICE_VAULT_DIR": str(tmp_path / "vault"), **SHORT_LEASE}
    first = serve(tmp_path / "one", **common, SERVICE_GATEWAY_PORT=str(free_port()))
    shutil.copytree(tmp_path / "one" / "keys", tmp_path / "two" / "keys")
    return [first, serve(tmp_path / "two", **common)]


@requirement("scale.balanced")
def test_no_task_is_lost_when_gateways_behind_the_balancer_leave_and_die(
    serve: Serve, tmp_path: Path, bare_url: str
) -> None:
    one, two = instances(serve, tmp_path, bare_url)
    with balancer(tmp_path, one.address, two.address) as address:
        load = Load(address, one.key, summaries(300), pause=0.005, again=(409, 502, 503))
        load.start()
        until(lambda: len(load.accepted) > 50)
        one.process.terminate()
        assert one.process.wait(200) == 0
        until(lambda: len(load.accepted) > 150)
        port = one.address.rsplit(":", 1)[1]
        again = serve(one.data_dir, **{**one.environ, "SERVICE_GATEWAY_PORT": port})
        until(lambda: len(load.accepted) > 220)
        two.kill()
        load.join()
        with httpx.Client(base_url=address, headers=ADMIN, timeout=200) as api:
            until(lambda: all(ended(api, task_id) for task_id in load.accepted))
    assert set(load.answers) <= {202, 502, 503}
    again.kill()
    assert check(bare_url, load.accepted) == []


def ended(api: httpx.Client, task_id: str) -> bool:
    return bool(api.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed")


@requirement("scale.balanced")
def test_tokens_come_through_one_by_one(serve: Serve, tmp_path: Path) -> None:
    service = serve()
    with (
        balancer(tmp_path, service.address) as address,
        httpx.Client(base_url=address, headers=ADMIN, timeout=200) as api,
    ):
        agent = post(api, "/registry/agents", name="ann", capabilities=["echo"])["agent_id"]
        task = post(api, "/tasks", type="echo", input=1, required_capabilities=["echo"])["task_id"]
        [claim] = post(api, f"/agents/{agent}/claims", wait_seconds=60)["tasks"]
        with api.stream("GET", f"/api/v1/tasks/{task}/stream") as stream:
            lines = stream.iter_lines()
            for word in ("one", "two", "three"):
                # Not sent before the word before it was read: what is held back anywhere is never read.
                post(api, f"/tasks/{task}/tokens", epoch=claim["epoch"], tokens=[f"{word} "])
                assert next(line for line in lines if line.startswith("data:") and f'"{word} "' in line)
            post(api, f"/tasks/{task}/complete", epoch=claim["epoch"], result="done")
            assert next(line for line in lines if line == "event: complete")


@requirement("scale.balanced")
def test_a_gateway_that_is_not_ready_gets_nothing(serve: Serve, tmp_path: Path) -> None:
    service = serve()
    ready = "/api/v1/health/ready"
    with (
        serving(lambda *_: Answer(503, b"")) as (other, asked),  # its database is out, or it is leaving
        balancer(tmp_path, service.address, other) as address,
    ):

        def checks() -> int:
            return [one.path for one in asked].count(ready)

        # The answer to the first check may still be on its way; what comes after a second one is known.
        until(lambda: checks() > 1)
        before = len(asked) - checks()
        answers = [httpx.get(f"{address}/api/v1").status_code for _ in range(40)]
    assert set(answers) == {200}
    assert len(asked) - checks() == before
