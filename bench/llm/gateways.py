"""The gateways that are measured, each a process of its own with one worker: Stentor and its two peers.

The peers lie beside the virtual environment, put there by `make bench` from requirements/litellm.txt and
requirements/portkey; one that is not there is named, and passed over.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.ports import free_port, wait_until_listening
from bench.service import KEY, command, environment, stop

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv" / "peers"
LITELLM = PEERS / "litellm" / "bin" / "litellm"
PORTKEY = PEERS / "portkey" / "node_modules" / "@portkey-ai" / "gateway"


@dataclass(frozen=True)
class Way:
    """Where chats are sent, and under which name of the model; `process` is None for the provider itself."""

    port: int
    model: str
    headers: dict[str, str]
    process: subprocess.Popen[str] | None = None


def missing() -> list[str]:
    """The peers that are not installed, by name."""
    lacks_node = shutil.which("node") is None or not PORTKEY.exists()
    return [name for name, lacks in (("LiteLLM proxy", not LITELLM.exists()), ("Portkey gateway", lacks_node)) if lacks]


def litellm_version() -> str:
    found = next(LITELLM.parents[1].glob("lib/*/site-packages/litellm-[0-9]*.dist-info"))
    return found.name.removeprefix("litellm-").removesuffix(".dist-info")


def portkey_version() -> str:
    return str(json.loads((PORTKEY / "package.json").read_text())["version"])


@contextmanager
def upstream() -> Iterator[Way]:
    with _process([sys.executable, "-m", "bench.llm.provider"], ROOT) as process:
        assert process.stdout is not None
        yield Way(json.loads(process.stdout.readline())["port"], "bench", {})


@contextmanager
def stentor(folder: Path, provider: int, model: str = "openai/bench", budgets: str = "") -> Iterator[Way]:
    """With every setting at its default but the rate limit, the number of streams, the budgets and the provider."""
    given = {
        "OPENAI_API_KEY": "of-nobody",
        "OPENAI_BASE_URL": _address(provider),
        "SERVICE_MAX_STREAMS_PER_KEY": "1000",
        "SERVICE_LLM_BUDGETS": budgets,
    }
    with _process(command(folder, 0), ROOT, environment() | given) as process:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["gateway"].rpartition(":")[2])
        yield Way(port, model, {"Authorization": f"Bearer {KEY}"}, process)


@contextmanager
def bare(folder: Path, provider: int) -> Iterator[Way]:
    with _process([sys.executable, "-m", "bench.llm.bare_proxy", str(provider)], ROOT) as process:
        assert process.stdout is not None
        yield Way(json.loads(process.stdout.readline())["port"], "bench", {}, process)


@contextmanager
def litellm(folder: Path, provider: int) -> Iterator[Way]:
    """Set up as its documentation says for production: one worker, logs at ERROR, no database, no telemetry."""
    port, key = free_port(), "sk-bench"
    served = {"model": "openai/bench", "api_base": _address(provider), "api_key": "of-nobody"}
    models = [{"model_name": "bench", "litellm_params": served}]
    config = {"model_list": models, "general_settings": {"master_key": key}, "litellm_settings": {"telemetry": False}}
    file = folder / "litellm.json"
    file.write_text(json.dumps(config))  # JSON is YAML
    words = [str(LITELLM), "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    given = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with _process([*words, "--telemetry", "False"], folder, _plain() | given) as process:
        wait_until_listening(process, port)
        yield Way(port, "bench", {"Authorization": f"Bearer {key}"}, process)


@contextmanager
def portkey(folder: Path, provider: int) -> Iterator[Way]:
    """Headless, as built; it takes the provider's address and key from each request."""
    port = free_port()
    words = ["node", str(PORTKEY / "build" / "start-server.js"), f"--port={port}", "--headless"]
    named = {"x-portkey-provider": "openai", "x-portkey-custom-host": _address(provider)}
    with _process(words, folder, _plain() | {"NODE_ENV": "production"}) as process:
        wait_until_listening(process, port)
        yield Way(port, "bench", {"Authorization": "Bearer of-nobody", **named}, process)


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def _plain() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@contextmanager
def _process(words: list[str], folder: Path, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    out = subprocess.PIPE if words[0] == sys.executable else subprocess.DEVNULL
    process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=subprocess.DEVNULL, text=True, env=environ)
    try:
        yield process
    finally:
        stop(process)
