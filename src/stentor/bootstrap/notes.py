"""Wires the note-store server from the environment. Source: second contract, "Note-store configuration"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stentor.core.errors import StartRefused
from stentor.core.redaction import Redactor
from stentor.domains.notes.plugin import Plugin
from stentor.surfaces.notestore.app import NoteStore
from stentor.surfaces.notestore.tools import Tools

REQUIRED = {
    "MCP_API_KEY": "the secret that agents send",
    "NOTES_BASE_URL": "the address of the vault plugin",
    "NOTES_API_KEY": "the key of the vault plugin",
}
LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
MAX_BODY = 20_000_000


@dataclass
class OpenedNotes:
    app: NoteStore
    plugin: Plugin
    port: int
    level: str


def open_notes(environ: Mapping[str, str], redactor: Redactor) -> OpenedNotes:
    """Raises StartRefused, which names each variable that is missing or wrong."""
    missing = [f"{name} ({what})" for name, what in REQUIRED.items() if not environ.get(name, "").strip()]
    if missing:
        raise StartRefused(f"Set {', '.join(missing)}.")
    port, level = environ.get("PORT", "3000"), environ.get("MCP_LOG_LEVEL", "info").lower()
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StartRefused(f"PORT must be a number from 0 to 65535 (it is {port!r}).")
    if level not in LEVELS:
        raise StartRefused(f"MCP_LOG_LEVEL must be debug, info, warn or error (it is {level!r}).")
    base = environ["NOTES_BASE_URL"].strip()
    if not base.startswith(("http://", "https://")):
        raise StartRefused("NOTES_BASE_URL must look like https://127.0.0.1:27124.")
    seconds = _seconds(environ.get("NOTES_TIMEOUT", "30"))
    for name in ("MCP_API_KEY", "NOTES_API_KEY"):
        redactor.add(environ[name])
    plugin = Plugin(base, environ["NOTES_API_KEY"].strip(), timeout=seconds)
    app = NoteStore(Tools(plugin), environ["MCP_API_KEY"].strip(), MAX_BODY)
    return OpenedNotes(app, plugin, int(port), LEVELS[level])


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 3600:
        raise StartRefused(f"NOTES_TIMEOUT must be a number of seconds from 0.05 to 3600 (it is {given!r}).")
    return seconds
