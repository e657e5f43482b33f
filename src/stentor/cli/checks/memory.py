"""The vault, and the model that search by meaning needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stentor.cli.checks.finding import Finding, Situation


def vault(situation: Situation) -> Iterator[Finding]:
    settings = situation.settings
    if not settings.memory:
        yield Finding("ok", "memory", "It is switched off (SERVICE_MEMORY).")
        return
    if settings.plugin_url:
        yield Finding("ok", "memory", f"The vault is behind the plugin at {settings.plugin_url}.")
        return
    folder = settings.vault_dir or settings.data_dir / "vault"
    if not folder.exists():
        yield Finding("ok", "memory", f"The vault {folder} does not exist yet; the first start makes it.")
    elif not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("problem", "memory", f"The vault {folder} is no folder that this user can write in.")
    else:
        yield Finding("ok", "memory", f"The vault {folder} is writable.")


def embeddings(situation: Situation) -> Iterator[Finding]:
    settings = situation.settings
    if not settings.memory:
        return
    if settings.embedding_url:
        yield Finding("ok", "embeddings", f"Vectors come from {settings.embedding_url}.")
    elif settings.embedding_model == "none":
        yield Finding("ok", "embeddings", "Search is by word alone (SERVICE_EMBEDDING_MODEL=none).")
    else:
        yield _local(settings.embedding_model)


def _local(folder: str) -> Finding:
    # Looks for the files only: loading the model takes a second and 150 MB.
    from stentor.core.errors import StentorError
    from stentor.domains.memory.embedding import local

    try:
        found = local.find_model_files(Path(folder) if folder else None)
    except StentorError as error:
        return Finding("warning", "embeddings", error.message)
    return Finding("ok", "embeddings", f"The model {found.name} is on this machine.")
