"""Wires the note store from the environment. Source: second contract, "Note-store configuration"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from starlette.types import ASGIApp

from stentor.auth.api_keys import WELL_KNOWN_KEYS, ensure_key_file
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.notes import plugin_client
from stentor.domains.notes.plugin_client import PluginClient, TrustSource
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.surfaces.notestore.app import create_app

REQUIRED = {
    "MCP_API_KEY": "the key that agents send",
    "NOTES_BASE_URL": "the URL of the vault plugin, such as https://127.0.0.1:27124",
    "NOTES_API_KEY": "the key of the vault plugin",
}
LOG_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
DEFAULT_PORT = 3000


@dataclass
class OpenedNotes:
    """The application, and the vault with its connections.

    `key_file` has the key that was generated beside a service without MCP_API_KEY.
    """

    app: ASGIApp
    vault: PluginVault
    port: int
    level: str
    key_file: str | None = None


def beside_vault(
    service: Settings,
    environ: Mapping[str, str],
    redactor: Redactor,
    address: str,
    vault_key: str,
    trusted: TrustSource | None,
) -> OpenedNotes:
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
    return replace(opened, key_file=path)


def open_notes(environ: Mapping[str, str], redactor: Redactor, trusted: TrustSource | None = None) -> OpenedNotes:
    """Raises StartRefused with each variable that is missing or invalid."""
    chosen = load_settings(environ)
    redactor.add_secret(chosen.key)
    redactor.add_secret(chosen.plugin_key)
    vault = PluginVault(PluginClient(chosen.address, chosen.plugin_key, chosen.timeout, trusted))
    return OpenedNotes(
        create_app(vault, chosen.key, lock_timeout_s=chosen.timeout), vault, chosen.port, chosen.log_level
    )


class NoteStoreSettings(msgspec.Struct, frozen=True):
    """Settings of the note store. `timeout` is in seconds, `log_level` a name of Python's `logging`."""

    key: str
    address: str
    plugin_key: str
    port: int
    timeout: float
    log_level: str


def load_settings(environ: Mapping[str, str]) -> NoteStoreSettings:
    """Read the settings. Raises StartRefused, which names all missing variables."""
    values = {name: environ.get(name, "").strip() for name in REQUIRED}
    missing = [f"{name} ({meaning})" for name, meaning in REQUIRED.items() if not values[name]]
    if missing:
        raise StartRefused(f"Not set: {', '.join(missing)}.")
    for name in ("MCP_API_KEY", "NOTES_API_KEY"):
        key = values[name]
        if not key.isascii() or not key.isprintable() or " " in key:
            raise StartRefused(f"{name} contains a character that a header cannot carry; use letters and digits.")
    # NODE_ENV, because the contract takes over the variables of a server that was written for Node.
    if values["MCP_API_KEY"].lower() in WELL_KNOWN_KEYS and environ.get("NODE_ENV") != "development":
        raise StartRefused(
            "MCP_API_KEY holds a publicly known key. Generate a random one, for example with "
            "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`, or set NODE_ENV=development."
        )
    return NoteStoreSettings(
        key=values["MCP_API_KEY"],
        address=plugin_client.parse_base_url(values["NOTES_BASE_URL"], "NOTES_BASE_URL"),
        plugin_key=values["NOTES_API_KEY"],
        port=_port(environ.get("PORT", "").strip()),
        timeout=_seconds(environ.get("NOTES_TIMEOUT", "").strip()),
        log_level=_level(environ.get("MCP_LOG_LEVEL", "").strip()),
    )


def _port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
        raise StartRefused(f"PORT must be a number from 0 to 65535 (it is {text!r}).")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text or plugin_client.TOTAL_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 3600:
        raise StartRefused(f"NOTES_TIMEOUT must be a number of seconds from 0.05 to 3600 (it is {text!r}).")
    return seconds


def _level(text: str) -> str:
    level = LOG_LEVELS.get(text.lower() or "info")
    if level is None:
        raise StartRefused(f"MCP_LOG_LEVEL must be debug, info, warn or error (it is {text!r}).")
    return level
