"""What docs/grpc.md shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import KEYS
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import Client
from tests.surfaces.grpc.test_gate import METHODS, needed

PAGE = (Path(__file__).parents[3] / "docs" / "grpc.md").read_text()
ROW = re.compile(r"^\| `(stentor[^`]+)` \| `(\w+)` \| `(\w+) ([^`]+)` \|$", re.MULTILINE)


@requirement("scale.grpc-tasks")
def test_the_client_in_ten_lines_prints_the_steps_and_the_result(client: Client, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    assert len([line for line in code.splitlines() if line]) <= 11
    (tmp_path / "client.py").write_text(code)
    command = [sys.executable, "client.py", client.service.ready["grpc"], KEYS["ADMIN"].split(":")[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "activity prompt_received"
    assert "activity task_completed" in lines
    assert lines[-2].strip() == "completed"
    assert "'summary'" in lines[-1]


@requirement("scale.grpc-tasks")
def test_every_method_stands_there_with_its_permission_and_its_route() -> None:
    shown = {f"/{name}": (verb.lower(), path, permission) for name, permission, verb, path in ROW.findall(PAGE)}
    assert shown == {name: (*route, needed(name)) for name, route in METHODS.items()}
