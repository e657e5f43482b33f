"""Wires the headless vault server: one application for HTTP and HTTPS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.auth.api_keys import ensure_key_file
from stentor.bootstrap.parts.memory import vault_folder
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.timers import AsyncJob
from stentor.domains.tasknotes.model import is_mirrored
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.server.app import VaultServer
from stentor_vault.server.certificate import ServerCertificate
from stentor_vault.server.search.text_index import VaultTextIndex

if TYPE_CHECKING:
    from stentor.web.server.certificate import ServedCertificate


@dataclass
class OpenedVault:
    """`key_file` is None if the key is a setting; `certificate` is None without HTTPS.

    With TLS on it is the certificate of all ports, which the code that opened it keeps up to date.
    """

    app: VaultServer
    texts: VaultTextIndex
    folder: Path
    key: str
    key_file: str | None
    certificate: ServerCertificate | ServedCertificate | None

    @property
    def background(self) -> list[AsyncJob]:
        """Jobs that run in the background until they are cancelled."""
        if isinstance(self.certificate, ServerCertificate):
            return [self.texts.run, self.certificate.renew_periodically]
        return [self.texts.run]


def open_vault(
    settings: Settings, redactor: Redactor, tls: ServedCertificate | None, *, creates_folder: bool = True
) -> OpenedVault:
    """Find or create the key and the certificate; needs no event loop. Raises StartRefused.

    With a memory in the same service `creates_folder` is false, because the memory decides whether to create a missing
    folder. `tls` is the certificate of all ports; without it the vault has one of its own for its second port.
    """
    folder = vault_folder(settings)
    own = None
    if tls is None and settings.vault.tls:
        own = ServerCertificate(settings.storage.data_dir / "keys", settings.server.host)
    try:
        if creates_folder:
            folder.mkdir(parents=True, exist_ok=True)
        key, path = (settings.vault.key, None) if settings.vault.key else _own_key(settings)
        if own is not None:
            own.ensure()
    except OSError as error:
        raise StartRefused(f"{error.filename} cannot be used: {error.strerror}.") from None
    redactor.add_secret(key)
    vault = FolderVault(folder)
    texts = VaultTextIndex(FolderVault(folder, is_unlisted=is_mirrored), is_excluded=is_mirrored)
    certificate = tls or own
    app = VaultServer(vault, texts, key, certificate=lambda: None if certificate is None else certificate.pem)
    return OpenedVault(app, texts, folder, key, path, certificate)


def _own_key(settings: Settings) -> tuple[str, str]:
    key, path, _ = ensure_key_file(settings.storage.data_dir, "vault")
    return key, str(path.absolute())
