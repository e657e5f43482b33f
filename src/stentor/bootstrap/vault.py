"""Wires the headless vault server."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from stentor.bootstrap.memory import vault_folder
from stentor.core.errors import StartRefused
from stentor.core.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.notes.folder import FolderVault
from stentor.surfaces.vault.app import VaultServer
from stentor.surfaces.vault.texts import Texts


@dataclass
class OpenedVault:
    """`key_file` is None when the key was given."""

    app: VaultServer
    texts: Texts
    folder: Path
    key_file: str | None


def open_vault(settings: Settings, redactor: Redactor) -> OpenedVault:
    """Read the folder, find or make the key. Raises StartRefused."""
    folder = vault_folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key, path = (settings.vault_key, None) if settings.vault_key else _own_key(settings.data_dir)
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be used: {error.strerror}.") from None
    redactor.add(key)
    vault = FolderVault(folder)
    texts = Texts(vault)
    asyncio.run(texts.load())
    return OpenedVault(VaultServer(vault, texts, key), texts, folder, path)


def _own_key(data_dir: Path) -> tuple[str, str]:
    """The key in the data folder, made at the first start, readable for its owner alone; and its file."""
    path = data_dir / "keys" / "vault.key"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip(), str(path.absolute())
    with os.fdopen(opened, "w") as file:
        key = secrets.token_hex(32)
        file.write(key + "\n")
    return key, str(path.absolute())
