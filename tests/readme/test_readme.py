"""Every code block of the README does what the README says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.patience import until
from tests.readme.blocks import DEMO_PAGE, README, ROOT, Block, blocks, demo_output
from tests.readme.checkout import Checkout, running_checkout

LANGUAGES = ["console", "bash", "bash", "bash", "python"]
COMMANDS, START, CLI, CURL, AGENT = range(5)


def test_no_block_is_without_a_test() -> None:
    assert [block.language for block in blocks()] == LANGUAGES


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = [line.removeprefix("$ ") for line in blocks()[COMMANDS].text.splitlines()]
    assert commands == ["make demo", "make test"]
    for command, runs in zip(commands, ("stentor demo", "-m pytest"), strict=True):
        planned = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert runs in planned.stdout


def figures(text: str) -> list[str]:
    """Lines without what may differ from run to run: numbers, times, ids, the width of columns."""
    ids = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)
    words = re.sub(r"[0-9][0-9.:]*", "N", ids)
    return [re.sub(r"[\s\u2500-\u257f]+", " ", line).strip() for line in words.splitlines()]


def titles(text: str) -> list[str]:
    """What stands for the demo's parts: all lines but the rows of its tables."""
    return [line for line in figures(text) if not line.startswith(("quick", "careful", "keyworder", "N "))]


def test_the_demo_ends_well_and_prints_what_its_page_shows() -> None:
    printed, shown = demo_output(), blocks(DEMO_PAGE)[0].text
    rows = {tuple(line.split()[:2]) for line in figures(printed) if line.startswith(("keywords", "summarize"))}
    assert rows == {tuple(line.split()[:2]) for line in figures(shown) if line.startswith(("keywords", "summarize"))}
    keep = (
        "Tasks",
        "capability",
        "Why",
        "round",
        "Learned",
        "agent",
        "Events",
        "prompt",
        "task",
        "learning",
        "N tasks",
        "a =",
    )
    assert [t for t in titles(printed) if t.startswith(keep)] == [t for t in titles(shown) if t.startswith(keep)]
    assert "40 tasks and 5 scenarios completed." in printed


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """With the service of the README's own block running."""
    start = blocks()[START].text.splitlines()[-1]
    with running_checkout(tmp_path_factory.mktemp("checkout"), start) as made:
        yield made


@pytest.mark.slow
def test_the_command_for_mcp_clients_prints_what_to_run(checkout: Checkout) -> None:
    (command,) = re.findall(r"`stentor (mcp install [^`]+)`", README.read_text("utf-8"))
    assert "claude mcp add" in checkout.bash(Block("bash", f".venv/bin/stentor {command}"))


def test_a_service_is_set_up_and_started_by_the_block_that_says_so(checkout: Checkout) -> None:
    setup, start = blocks()[START].text.splitlines()
    assert start == ".venv/bin/stentor serve"
    planned = subprocess.run([*setup.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "make" in setup
    assert planned.returncode == 0
    assert (checkout.folder / "data" / "keys" / "admin.key").stat().st_mode & 0o777 == 0o600


def test_the_commands_submit_and_show(checkout: Checkout) -> None:
    printed = checkout.bash(blocks()[CLI])
    assert "summary" in printed
    assert "summarizer" in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_submits_and_lists(checkout: Checkout) -> None:
    submitted, listed = (json.loads(line) for line in split_documents(checkout.bash(blocks()[CURL])))
    assert submitted["status"] == "queued"
    assert submitted["task_id"] in {row["task_id"] for row in listed["tasks"]}


def split_documents(text: str) -> list[str]:
    """curl puts nothing between two answers."""
    return text.replace("}{", "}\n{").splitlines()


def test_the_agent_does_a_task(checkout: Checkout) -> None:
    (checkout.folder / "agent.py").write_text(blocks()[AGENT].text, "utf-8")
    key = (checkout.folder / "data" / "keys" / "admin.key").read_text().strip()
    address = f"http://127.0.0.1:{checkout.port}"
    body = {
        "type": "keywords",
        "required_capabilities": ["keywords"],
        "input": {"text": "agents route agents", "top": 1},
    }
    with (
        checkout.running([".venv/bin/python", "agent.py", address, key]) as agent,
        httpx.Client(base_url=f"{address}/api/v1", headers={"X-API-Key": key}) as api,
    ):
        until(lambda: api.get("/registry/agents?capability=keywords").json()["agents"] or agent.poll() is not None)
        task_id = api.post("/tasks", json=body).json()["task_id"]
        until(lambda: api.get(f"/tasks/{task_id}").json()["status"] not in ("queued", "executing"))
        assert api.get(f"/tasks/{task_id}").json()["result"] == ["agents"]
