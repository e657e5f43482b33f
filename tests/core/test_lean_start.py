"""What a start does not need is not imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "aiohttp alembic genai_prices grpc mcp mcp_types numpy onnx onnxruntime PIL sqlalchemy tokenizers".split()


@pytest.mark.parametrize("module", ["stentor.bootstrap", "stentor.bootstrap.surfaces", "stentor.cli.service_runner"])
def test_wiring_the_service_imports_no_library_that_its_start_can_do_without(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
