"""How a vault plugin fails. No message holds what the plugin answered, nor the key it was asked with."""

from __future__ import annotations

from stentor.core.errors import Timeout
from stentor.domains.notes.model import VaultUnavailable


class UpstreamDown(VaultUnavailable):
    """Nobody answers at the vault plugin's address, or the connection broke off."""

    code, status = "VAULT_UNREACHABLE", 502


class KeyRefused(VaultUnavailable):
    """The vault plugin does not know the key that it was asked with; the operator has to set NOTES_API_KEY."""

    code, status = "VAULT_KEY_REFUSED", 502


class UpstreamBroken(VaultUnavailable):
    """The vault plugin answered what it never should: a failure of its own, a redirect, no JSON where JSON is due."""

    code, status = "VAULT_BROKEN", 502


class VaultTimeout(Timeout, VaultUnavailable):
    """The vault plugin took longer than it may. Whether a change was made is not known."""
