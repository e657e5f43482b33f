"""Wires the headless vault server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.auth.keys import own_key
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
    key: str
    key_file: str | None


def open_vault(settings: Settings, redactor: Redactor) -> OpenedVault:
    """Read the folder, find or make the key. Raises StartRefused."""
    folder = vault_folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key, path = (settings.vault_key, None) if settings.vault_key else _own_key(settings)
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be used: {error.strerror}.") from None
    redactor.add(key)
    vault = FolderVault(folder)
    texts = Texts(vault)
    return OpenedVault(VaultServer(vault, texts, key), texts, folder, key, path)


def _own_key(settings: Settings) -> tuple[str, str]:
    key, path, _ = own_key(settings.data_dir, "vault")
    return key, str(path.absolute())
