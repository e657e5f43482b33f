"""The vault, and the model that search by meaning needs.

Whether programs of agents can be run, and run caged.

The running service: who holds the folder, and how it feels.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from stentor.bootstrap.parts.command_agents import process_sandbox
from stentor.cli.client import is_loopback, parse_service_url
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.cli.output import CommandFailed
from stentor.core.errors import SandboxUnavailable, StartRefused
from stentor.core.filesystem import read_lock_holder
from stentor.domains.sandbox.broker import command_tools
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, check_folder


def check_vault(situation: CheckContext) -> Iterator[CheckFinding]:
    settings = situation.settings
    if not settings.memory.enabled:
        yield CheckFinding("ok", "memory", "It is switched off (SERVICE_MEMORY).")
        return
    if settings.memory.plugin_url:
        yield CheckFinding("ok", "memory", f"The vault is behind the plugin at {settings.memory.plugin_url}.")
        return
    folder = settings.memory.vault_dir or settings.storage.data_dir / "vault"
    if not folder.exists():
        yield CheckFinding("ok", "memory", f"The vault {folder} does not exist yet; the first start makes it.")
    elif not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield CheckFinding("problem", "memory", f"The vault {folder} is no folder that this user can write in.")
    else:
        yield CheckFinding("ok", "memory", f"The vault {folder} is writable.")


def check_embeddings(situation: CheckContext) -> Iterator[CheckFinding]:
    settings = situation.settings
    if not settings.memory.enabled:
        return
    if settings.memory.embedding_url:
        yield CheckFinding("ok", "embeddings", f"Vectors come from {settings.memory.embedding_url}.")
    elif settings.memory.embedding_model == "none":
        yield CheckFinding("ok", "embeddings", "Search is by word alone (SERVICE_EMBEDDING_MODEL=none).")
    else:
        yield _check_local_model(settings.memory.embedding_model)


def _check_local_model(folder: str) -> CheckFinding:
    # Looks for the files only: loading the model takes a second and 150 MB.
    from stentor.core.errors import StentorError
    from stentor.domains.memory.embedding import local

    try:
        found = local.find_model_files(Path(folder) if folder else None)
    except StentorError as error:
        return CheckFinding("warning", "embeddings", error.message)
    return CheckFinding("ok", "embeddings", f"The model {found.name} is on this machine.")


def check_sandbox(situation: CheckContext) -> Iterator[CheckFinding]:
    """Makes a cage in a folder of its own, so that a running service keeps its own."""
    settings = situation.settings
    if not settings.sandbox.command_agents:
        yield CheckFinding("ok", "cage", "Command agents are switched off (SERVICE_COMMAND_AGENTS).")
        return
    if not settings.sandbox.enabled:
        message = "SERVICE_CAGE=off: programs of agents have all rights of the service's user. Unset it."
        yield CheckFinding("warning", "cage", message)
        return
    try:
        chosen = process_sandbox(settings)
        command_tools.load_command_tools(settings.sandbox.tools, chosen)
        check_folder(chosen.folder)
    except (StartRefused, SandboxUnavailable) as error:
        yield CheckFinding("problem", "cage", error.message)
    with tempfile.TemporaryDirectory(prefix="stentor-") as folder:
        Path(folder).chmod(0o711)
        tried = ProcessSandbox(Path(folder) / "cage", {})
        tried.open()
    if tried.problem is not None:
        yield CheckFinding("problem", "cage", f"Command agents are refused: {tried.problem}")
    else:
        yield CheckFinding("ok", "cage", "A program was run in a cage.")


HEALTH_TIMEOUT_SECONDS = 5


def check_folder_owner(situation: CheckContext) -> Iterator[CheckFinding]:
    folder = situation.settings.storage.data_dir
    holder = read_lock_holder(folder)
    if holder is None:
        yield CheckFinding("ok", "service", f"No service holds {folder}; `stentor serve` starts one.")
    elif holder.gateway is None:
        yield CheckFinding(
            "warning", "service", f"Process {holder.pid} holds {folder} and answers nowhere yet: ask again."
        )
    else:
        yield CheckFinding("ok", "service", f"Process {holder.pid} holds {folder} since {holder.since}.")
        yield check_health("service", holder.gateway)


def check_service_url(situation: CheckContext) -> Iterator[CheckFinding]:
    if situation.settings.client.url:
        yield check_health("SERVICE_URL", situation.settings.client.url)


def check_health(check: str, where: str) -> CheckFinding:
    """What its detailed health says."""
    try:
        url = parse_service_url(where)
    except CommandFailed as error:
        return CheckFinding("problem", check, str(error))
    shown = url.copy_with(userinfo=b"")
    try:
        with httpx.Client(base_url=url, timeout=HEALTH_TIMEOUT_SECONDS, trust_env=not is_loopback(url)) as http:
            answer = http.get("/api/v1/health/detailed")
            components = answer.json()["components"]
            down = [name for name, one in components.items() if one["status"] == "unavailable"]
    except httpx.TransportError as error:
        return CheckFinding(
            "problem", check, f"Nothing answers on {shown} ({type(error).__name__}): is it running there?"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return CheckFinding("problem", check, f"What answers on {shown} is not Stentor: check the address.")
    if down:
        return CheckFinding("problem", check, f"{shown} answers, but is not well: {', '.join(down)}. Its log says why.")
    return CheckFinding("ok", check, f"{shown} answers and is well.")
