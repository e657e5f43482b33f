"""What the pages on operations tell people to type: backups, restores, new keys, and the move to two gateways."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.cli.populated import ENVIRON, NOTE, Filled, fill, post, stop, work_off
from tests.conftest import ADMIN, KEYS, Service, serving
from tests.deploy.described import options
from tests.deploy.page import PAGES, Shell, page, section
from tests.faults.checker import check
from tests.faults.load import Load, summaries
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement
from tests.system import need

NAMES = ("GATEWAY", "DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.only("sqlite", reason="the page begins with SQLite"),
]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    keys = {f"SERVICE_API_KEY_{name}": value for name, value in KEYS.items()}
    ports = {f"SERVICE_{name}_PORT": "0" for name in NAMES}
    limits = {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_LLM_FIND_OLLAMA": "0"}
    (tmp_path / "work").mkdir()
    return Shell(tmp_path / "work", {**keys, **ports, **limits, **ENVIRON})


@pytest.fixture
def filled(shell: Shell) -> Filled:
    """The folder `data` that the page speaks of, filled by a service that was stopped."""
    with serving(shell.folder) as start:
        return fill(start(shell.folder / "data", **ENVIRON))


def ready(address: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until it says that it is ready."""

    def answers() -> bool:
        assert process.poll() is None
        try:
            return bool(httpx.get(f"{address}/api/v1/health/ready", timeout=200).json() == {"ready": True})
        except (httpx.TransportError, json.JSONDecodeError):
            return False

    until(answers)
    return address


def client(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers=ADMIN, timeout=200)


@requirement("scale.operations-page")
def test_a_sqlite_service_is_backed_up_while_it_runs_and_restored(shell: Shell, filled: Filled) -> None:
    make, restore, start, look_at_older = section("backup", "SQLite")
    with serving(shell.folder) as begin:
        service = begin(filled.folder, **ENVIRON)
        assert "intact" in shell.run(make)
        with service.client() as api:
            later = post(api, "/tasks", type="echo", input=1, required_capabilities=["echo"])["task_id"]
        stop(service)
    assert "intact" in shell.run(look_at_older)
    assert "intact" in shell.run(restore)
    port = str(free_port())
    with ExitStack() as stack:
        process = stack.enter_context(shell.running(start, SERVICE_GATEWAY_PORT=port))
        api = stack.enter_context(client(ready(f"http://127.0.0.1:{port}", process)))
        assert work_off(api, filled.agent, 5) == set(filled.waiting)
        assert api.get(f"/api/v1/tasks/{later}").status_code == 404, "it came after the backup"
        read = api.get("/api/v1/memory/read/exact", params={"path": NOTE}).json()
        assert "harbour" in read["document"]["content"]


@requirement("scale.operations-page")
def test_a_postgresql_database_is_dumped_and_restored(
    shell: Shell, filled: Filled, bare_url: str, postgres_server: str
) -> None:
    shell.run('stentor db copy sqlite:///data/stentor.db "$URL"', URL=bare_url)
    dump, restore = section("backup", "PostgreSQL")
    shell.run(dump, SERVICE_DATABASE_URL=bare_url)
    assert (shell.folder / "stentor.dump").stat().st_mode & 0o077 == 0, "other users must not read it"
    name = bare_url.split("?")[0].rsplit("/", 1)[1]
    restored = bare_url.replace(name, f"{name}_restored")
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'create database "{name}_restored"'.encode())
        try:
            assert "intact" in shell.run(restore, RESTORED_URL=restored)
            assert check(restored, filled.done, filled.waiting) == []
        finally:
            admin.execute(f'drop database "{name}_restored" with (force)'.encode())


@requirement("scale.operations-page")
def test_keys_are_rotated_as_the_page_says(shell: Shell, filled: Filled) -> None:
    for title in ("Receipts", "Checkpoints", "The master key"):
        shell.run(section("keys", title)[0])
    with serving(shell.folder) as start:
        service = start(filled.folder, **ENVIRON)
        with service.client() as api:
            assert api.post("/api/v1/provenance/checkpoint").status_code == 200
            body = {"provider": "mine", "apiKey": "sk-canary-77aa", "baseUrl": "http://127.0.0.1:9/v1"}
            assert post(api, "/llm/provider", **body)["data"]["apiKeyConfigured"] is True
        assert filled.secret not in shell.run(section("keys", "The master key")[1], SERVICE_CLIENT_KEY=service.key)
        stop(service)
    assert "intact" in shell.run(section("keys", "Checkpoints")[1])


@requirement("scale.operations-page")
def test_a_running_sqlite_service_becomes_two_gateways_and_no_task_is_lost(
    shell: Shell, filled: Filled, bare_url: str, serve: Callable[..., Service]
) -> None:
    need("caddy")
    before, end, backup, copy, spread, one, two, look, balance, back, alone = section(
        "postgresql", "From SQLite to two gateways on PostgreSQL"
    )
    ports = str(free_port()), str(free_port()), str(free_port())
    shell.environ |= {
        "SERVICE_VAULT_DIR": str(shell.folder / "shared-vault"),
        "STENTOR_SITE": f":{ports[2]}",
        "STENTOR_GATEWAYS": f"127.0.0.1:{ports[0]} 127.0.0.1:{ports[1]}",
    }
    target = {"SERVICE_DATABASE_URL": bare_url}
    service = serve(filled.folder, **ENVIRON)
    (shell.folder / "service.pid").write_text(str(service.process.pid))
    address = f"http://127.0.0.1:{ports[2]}"
    load = Load(address, ADMIN["X-API-Key"], summaries(60), pause=0.01, again=(409, 502, 503))
    with ExitStack() as stack:
        assert "intact" in shell.run(before)
        load.start()  # from here on callers ask the new address, again and again
        shell.run(end)
        assert service.process.wait(200) == 0
        shell.run(backup)
        assert "intact" in shell.run(copy, **target)
        shell.run(spread)
        for block, port in ((one, ports[0]), (two.replace("8090", ports[1]), ports[1])):
            process = stack.enter_context(shell.running(block, SERVICE_GATEWAY_PORT=port, **target))
            ready(f"http://127.0.0.1:{port}", process)
        assert "intact" in shell.run(look, **target)
        process = stack.enter_context(shell.running(balance))
        load.join()
        with client(ready(address, process)) as api:
            assert work_off(api, filled.agent, 5) == set(filled.waiting)
            until(lambda: all(completed(api, task_id) for task_id in load.accepted))
            read = api.get("/api/v1/memory/read/exact", params={"path": NOTE}).json()
            assert "harbour" in read["document"]["content"]
    everything = filled.done + filled.waiting + load.accepted
    assert check(bare_url, everything) == []

    assert "intact" in shell.run(back, **target)
    home = {"SERVICE_GATEWAY_PORT": ports[0], "SERVICE_VAULT_DIR": str(shell.folder / "back" / "vault")}
    with ExitStack() as stack:
        process = stack.enter_context(shell.running(alone, **home))
        api = stack.enter_context(client(ready(f"http://127.0.0.1:{ports[0]}", process)))
        assert all(completed(api, task_id) for task_id in load.accepted)


def completed(api: httpx.Client, task_id: str) -> bool:
    return bool(api.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed")


@requirement("scale.operations-page")
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_is_one_of_the_program(name: str) -> None:
    text = page(name)
    blocks = "\n".join(part for part in text.split("```")[1::2])
    for line in blocks.splitlines():
        for command in line.replace("| ", "\n").splitlines():
            words = command.lstrip("$# ").split()
            if words[:1] == ["stentor"]:
                used, known = options(words[1:])
                assert {word.split("=")[0] for word in used} <= known, command
