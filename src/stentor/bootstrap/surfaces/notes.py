"""Wires the note store from the environment. Source: second contract, "Note-store configuration"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp

from stentor.auth.api_keys import ensure_key_file
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.notes.plugin_client import PluginClient, TrustSource
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.surfaces.notestore import settings
from stentor.surfaces.notestore.app import create_app


@dataclass
class OpenedNotes:
    """The application, and the vault with its connections."""

    app: ASGIApp
    vault: PluginVault
    port: int
    level: str


@dataclass
class NoteStoreBeside:
    """The note store in `stentor serve`. `key_file` is None if MCP_API_KEY is set."""

    app: ASGIApp
    vault: PluginVault
    key_file: str | None


def beside_vault(
    service: Settings,
    environ: Mapping[str, str],
    redactor: Redactor,
    address: str,
    vault_key: str,
    trusted: TrustSource | None,
) -> NoteStoreBeside:
    """Open it over the service's own vault, unless NOTES_BASE_URL names another one. Raises StartRefused.

    `trusted` is for that vault's own certificate.
    """
    given = {"NOTES_BASE_URL": address, "NOTES_API_KEY": vault_key}
    if environ.get("NOTES_BASE_URL", "").strip():
        given, trusted = {}, None
    path = None
    if not service.auth.shared_key:
        key, file, _ = ensure_key_file(service.storage.data_dir, "notes")
        given, path = {**given, "MCP_API_KEY": key}, str(file.absolute())
    opened = open_notes({**environ, **given}, redactor, trusted)
    return NoteStoreBeside(opened.app, opened.vault, path)


def open_notes(environ: Mapping[str, str], redactor: Redactor, trusted: TrustSource | None = None) -> OpenedNotes:
    """Raises StartRefused with each variable that is missing or invalid."""
    chosen = settings.load_settings(environ)
    redactor.add_secret(chosen.key)
    redactor.add_secret(chosen.plugin_key)
    vault = PluginVault(PluginClient(chosen.address, chosen.plugin_key, chosen.timeout, trusted))
    return OpenedNotes(
        create_app(vault, chosen.key, lock_timeout_s=chosen.timeout), vault, chosen.port, chosen.log_level
    )
