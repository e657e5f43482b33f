"""Agents on a real Ray cluster of two nodes, with the example of the documentation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.patience import until
from tests.readme.blocks import blocks
from tests.requirements import requirement
from tests.service import SHORT_LEASE

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ray_words.py"
RAY = Path(sys.prefix) / "ray" / "bin" / "python"
HANG = "tests.domains.execution.runtimes.cluster.jobs:hang"
needs_ray = pytest.mark.skipif(not RAY.exists(), reason="make test-all sets Ray up")


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a cluster, and the program that runs it."""
    # Short: paths of sockets are below it, and must have less than 108 bytes.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    environ = {"PATH": os.environ["PATH"], "HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    environ |= {"PYTHONPATH": f"{EXAMPLE.parent}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    with (Path(folder) / "printed").open("w") as printed:
        process = subprocess.Popen(
            [str(RAY), "-P", str(Path(__file__).with_name("ray_nodes.py"))],
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (Path(folder) / "printed").read_text()
        yield address, process
    finally:
        process.communicate(timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def service(nodes: tuple[str, Any], serve: Callable[..., Service]) -> Service:
    return serve(
        SERVICE_RAY_ADDRESSES=nodes[0],
        SERVICE_RAY_ENTRYPOINTS="ray_words:*,tests.domains.execution.runtimes.cluster.jobs:*",
        SERVICE_RAY_PYTHON=str(RAY),
        **SHORT_LEASE,
    )


def register(api: httpx.Client, entrypoint: str, **options: Any) -> None:
    runtime = {"kind": "ray", "options": {"entrypoint": entrypoint, **options}}
    body = {"name": "remote", "capabilities": ["work"], "runtime": runtime}
    assert api.post("/api/v1/registry/agents", json=body).status_code == 201


def submit(api: httpx.Client, input: str) -> str:
    body = {"type": "work", "required_capabilities": ["work"], "input": input}
    return str(api.post("/api/v1/tasks", json=body).json()["task_id"])


def ended(api: httpx.Client, task_id: str) -> dict[str, Any]:
    until(lambda: api.get(f"/api/v1/tasks/{task_id}").json()["status"] not in ("queued", "executing"))
    return dict(api.get(f"/api/v1/tasks/{task_id}").json())


def started_process(file: Path) -> int:
    """The process of a job that hangs, once it has written its number."""
    until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@requirement("documentation.ray")
def test_the_example_fits_on_a_screen() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    assert len(lines) <= 40, "the documentation promises at most 40 lines"
    assert all(len(line) <= 120 for line in lines)
    shown = next(block.text for block in blocks(ROOT / "docs" / "tutorials" / "ray.md") if block.language == "python")
    assert shown.strip() in EXAMPLE.read_text("utf-8")


@pytest.mark.slow
@needs_ray
@requirement("documentation.ray", "execution.ray-runtime")
def test_the_example_counts_words_on_the_nodes_and_says_how_far_it_is(service: Service) -> None:
    with service.client() as api:
        register(api, "ray_words:count_words")
        task_id = submit(api, "the sea\nthe sky\n" * 1_500)
        with api.stream("GET", f"/api/v1/tasks/{task_id}/stream") as stream:
            frames = "".join(stream.iter_text())
        task = ended(api, task_id)
    assert (task["status"], task["result"]) == ("completed", {"the": 3_000, "sea": 1_500, "sky": 1_500}), task
    assert "3 of 3 parts are counted" in frames


@pytest.mark.slow
@needs_ray
@requirement("execution.ray-runtime", "execution.cancel-reaches-runtime")
def test_a_cancel_and_a_killed_service_end_the_process_on_the_node(service: Service, tmp_path: Path) -> None:
    with service.client() as api:
        register(api, HANG)
        task_id = submit(api, str(tmp_path / "first"))
        first = started_process(tmp_path / "first")
        assert api.post(f"/api/v1/tasks/{task_id}/cancel").status_code == 200
        until(lambda: gone(first))
        submit(api, str(tmp_path / "second"))
        second = started_process(tmp_path / "second")
    service.kill()
    until(lambda: gone(second))


@pytest.mark.slow
@needs_ray
@requirement("execution.ray-errors")
def test_a_lost_node_is_no_failure_of_the_agent_and_a_killed_process_is(
    service: Service, nodes: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    with service.client() as api:
        register(api, HANG, num_gpus=1)
        task_id = submit(api, str(tmp_path / "first"))
        os.kill(started_process(tmp_path / "first"), 9)
        task = ended(api, task_id)
        assert (task["outcome_class"], task["error"]["code"]) == ("agent_failure", "CLUSTER_JOB_FAILED"), task
        task_id = submit(api, str(tmp_path / "second"))
        started_process(tmp_path / "second")
        assert nodes[1].stdin is not None
        nodes[1].stdin.write("\n")
        nodes[1].stdin.flush()
        task = ended(api, task_id)
        assert (task["outcome_class"], task["error"]["code"]) == ("provider_failure", "CLUSTER_LOST"), task
        assert task["learning_eligible"] is False
