"""Wires the note-store server from the environment. Source: second contract, "Note-store configuration"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp

from stentor.core.redaction import Redactor
from stentor.domains.notes.plugin import Plugin
from stentor.domains.notes.pluginvault import PluginVault
from stentor.surfaces.notestore import settings
from stentor.surfaces.notestore.app import build


@dataclass
class OpenedNotes:
    """The application, and the vault that it keeps a connection to."""

    app: ASGIApp
    vault: PluginVault
    port: int
    level: str


def open_notes(environ: Mapping[str, str], redactor: Redactor) -> OpenedNotes:
    """Raises StartRefused, which names each variable that is missing or wrong."""
    chosen = settings.load(environ)
    redactor.add(chosen.key)
    redactor.add(chosen.plugin_key)
    vault = PluginVault(Plugin(chosen.address, chosen.plugin_key, chosen.timeout))
    return OpenedNotes(build(vault, chosen.key, patience=chosen.timeout), vault, chosen.port, chosen.log_level)
