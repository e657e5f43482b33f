"""Wires the headless vault server: `open_vault`, then `load`, then its listeners and what runs beside them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.bootstrap.memory import vault_folder
from stentor.core.errors import StartRefused
from stentor.core.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.notes.folder import FolderVault
from stentor.surfaces.vault.app import VaultServer
from stentor.surfaces.vault.certificate import Certificate
from stentor.surfaces.vault.texts import Texts


@dataclass
class OpenedVault:
    """One application for both listeners. `key_file` is None when the key was given, `certificate` without HTTPS."""

    app: VaultServer
    texts: Texts
    folder: Path
    key_file: str | None
    certificate: Certificate | None

    async def load(self) -> None:
        """Read the whole folder; once, before the first request. Raises VaultUnavailable."""
        await self.texts.load()

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the listeners until it is cancelled."""
        return [self.texts.follow(), *([] if self.certificate is None else [self.certificate.keep()])]


def open_vault(settings: Settings, redactor: Redactor) -> OpenedVault:
    """Find or make the key and the certificate; needs no event loop. Raises StartRefused."""
    folder, keys = vault_folder(settings), settings.data_dir / "keys"
    certificate = Certificate(keys, settings.host) if settings.vault_tls else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key, path = (settings.vault_key, None) if settings.vault_key else _own_key(keys / "vault.key")
        if certificate is not None:
            certificate.ensure()
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be used: {error.strerror}.") from None
    redactor.add(key)
    vault = FolderVault(folder)
    texts = Texts(vault)
    app = VaultServer(vault, texts, key, certificate=lambda: None if certificate is None else certificate.pem)
    return OpenedVault(app, texts, folder, path, certificate)


def _own_key(path: Path) -> tuple[str, str]:
    """The key in the data folder, made at the first start, readable for its owner alone; and its file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip(), str(path.absolute())
    with os.fdopen(opened, "w") as file:
        key = secrets.token_hex(32)
        file.write(key + "\n")
    return key, str(path.absolute())
