"""A disk that fills up: 503, not ready, nothing half-written, and work again once there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Service
from tests.faults.checker import check
from tests.faults.load import summaries, wait_for
from tests.patience import until
from tests.requirements import requirement

pytestmark = pytest.mark.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room for another byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with pytest.raises(OSError, match="No space"):
                write_for_ever(file, size)


def write_for_ever(file: FileIO, size: int) -> None:
    while True:
        file.write(b"x" * size)


@requirement("activity.log-is-fail-closed")
@pytest.mark.only("sqlite", reason="the disk is the PostgreSQL server's")
def test_a_full_disk_is_an_outage_and_no_loss(serve: Callable[..., Service], small_disk: Path) -> None:
    service = serve(data_dir=small_disk / "data")
    bodies: list[dict[str, Any]] = [
        {**body, "input": {"text": body["input"], "note": "x" * 20_000}} for body in summaries(40)
    ]
    accepted: list[str] = []
    with service.client() as client:
        for body in bodies[:10]:
            assert client.post("/api/v1/tasks", json=body).status_code == 202
            accepted.append(body["id"])
        wait_for(client, 10)
        fill(small_disk / "ballast")
        refused: list[str] = []
        for body in bodies[10:30]:
            answer = client.post("/api/v1/tasks", json=body)
            (accepted if answer.status_code == 202 else refused).append(body["id"])
            if answer.status_code != 202:
                assert answer.status_code == 503, answer.text
                assert answer.json()["error"]["code"] == "SERVICE_UNAVAILABLE"
        assert refused
        for task_id in refused:
            assert client.get(f"/api/v1/tasks/{task_id}").status_code == 404
        assert client.get("/api/v1/health/live").status_code == 200
        # Not at once: there may be room in the WAL for the small writes of a few checks.
        until(lambda: client.get("/api/v1/health/ready").status_code == 503)
        (small_disk / "ballast").unlink()
        until(lambda: client.get("/api/v1/health/ready").status_code == 200)
        for body in bodies[30:]:
            assert client.post("/api/v1/tasks", json=body).status_code == 202
            accepted.append(body["id"])
        wait_for(client, len(accepted))
    service.process.terminate()
    assert service.process.wait(200) == 0
    assert check(small_disk / "data" / "stentor.db", accepted) == []
