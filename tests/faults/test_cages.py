"""kill -9 of the service while an agent's program runs: nothing of it survives, and the task is done again."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.system import need

pytestmark = pytest.mark.fault


@pytest.fixture
def cage_dir() -> Iterator[Path]:
    need("bwrap")
    folder = Path(tempfile.mkdtemp(prefix="stentor-cage-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def alive(marker: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@requirement("sandbox.dies-with-service")
def test_no_process_of_a_cage_survives_a_killed_service(serve: Callable[..., Service], cage_dir: Path) -> None:
    marker = uuid.uuid4().hex
    environ = {"SERVICE_COMMAND_AGENTS": "1", "SERVICE_CAGE_DIR": str(cage_dir), "SERVICE_MEMORY": "0"}
    environ |= SHORT_LEASE
    service = serve(**environ)
    script = (
        f": {marker}; trap '' TERM HUP; if [ -e again ]; then echo '{{\"result\": \"done again\"}}'; exit; fi; "
        f"touch again; setsid sh -c 'sleep 600; : {marker}' & sleep 600; :"
    )
    runtime = {"kind": "command", "command": ["sh", "-c", script], "options": {"folder": "kept"}}
    with service.client() as client:
        body = {"name": "ann", "capabilities": ["work"], "runtime": runtime}
        agent = client.post("/api/v1/registry/agents", json=body).json()["agent_id"]
        task = {"type": "work", "input": 1, "required_capabilities": ["work"]}
        task_id = client.post("/api/v1/tasks", json=task).json()["task_id"]
    until(lambda: (cage_dir / "kept" / agent / "again").exists())
    assert alive(marker)
    service.kill()
    until(lambda: not alive(marker))
    service = serve(data_dir=service.data_dir, **environ)
    with service.client() as client:
        until(lambda: client.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed")
        done = client.get(f"/api/v1/tasks/{task_id}").json()
        events = client.get(f"/api/v1/tasks/{task_id}/activity", params={"limit": 100}).json()["events"]
    assert done["result"] == "done again"
    assert [e["event_type"] for e in events].count("task_requeued") == 1
    assert list((cage_dir / "runs").iterdir()) == []


@requirement("sandbox.ends-whole")
def test_a_service_that_leaves_takes_its_cages_along(serve: Callable[..., Service], cage_dir: Path) -> None:
    marker = uuid.uuid4().hex
    service = serve(SERVICE_COMMAND_AGENTS="1", SERVICE_CAGE_DIR=str(cage_dir), SERVICE_MEMORY="0")
    runtime = {"kind": "command", "command": ["sh", "-c", f"trap '' TERM; sleep 600; : {marker}"]}
    with service.client() as client:
        client.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["work"], "runtime": runtime})
        client.post("/api/v1/tasks", json={"type": "work", "input": 1, "required_capabilities": ["work"]})
        until(lambda: alive(marker))
    service.process.terminate()
    assert service.process.wait(200) == 0
    assert not alive(marker)
