"""Settings: the vault that the memory is made of, and how it is searched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def parse_named_folders(value: str) -> tuple[str, ...]:
    """`<name>=<folder>` each. Raises ValueError for a name that is none, or stands twice."""
    found: dict[str, str] = {}
    for part in parsers.text_list(value):
        name, _, folder = (piece.strip() for piece in part.partition("="))
        if not folder or not _NAME.fullmatch(name):
            raise ValueError("has a part that is not <name>=<folder>; a name is made of small letters, digits and _")
        if name == "default" or name in found:
            raise ValueError(f"has the name {name!r} twice; `default` is the vault of SERVICE_VAULT_DIR")
        found[name] = folder
    return tuple(f"{name}={folder}" for name, folder in found.items())


@dataclass(frozen=True)
class MemorySettings:
    memory: bool = setting(
        "SERVICE_MEMORY", True, "Whether the service has a memory: a vault, its index, the bus.", parsers.boolean
    )
    vault_dir: Path | None = setting(
        "SERVICE_VAULT_DIR",
        None,
        "Folder of the vault's notes; empty means `vault` in the data folder.",
        parsers.optional_path,
    )
    vaults: tuple[str, ...] = setting(
        "SERVICE_VAULTS",
        (),
        "More vaults beside the default one: `<name>=<folder>`, comma separated; a request names one with `vault`.",
        parse_named_folders,
    )
    plugin_url: str = setting(
        "SERVICE_VAULT_PLUGIN_URL",
        "",
        "Vault plugin that holds the notes instead of a folder, such as https://127.0.0.1:27124.",
        parsers.text,
    )
    plugin_key: str = setting("SERVICE_VAULT_PLUGIN_KEY", "", "Key of that plugin.", parsers.text, secret=True)
    vault_tenant: str = setting(
        "SERVICE_VAULT_TENANT", "default", "The tenant whose keys may use the memory.", parsers.text
    )
    vault_reconcile: float = setting(
        "SERVICE_VAULT_RECONCILE_SECONDS",
        300.0,
        "How often the whole vault is compared with the index.",
        parsers.number(1, 86_400, float),
    )
    vault_poll: bool = setting(
        "SERVICE_VAULT_POLL",
        False,
        "Look for edits by polling: for a vault on a network's file system.",
        parsers.boolean,
    )
    embedding_model: str = setting(
        "SERVICE_EMBEDDING_MODEL",
        "",
        "Folder of a local model, or with SERVICE_EMBEDDING_URL a model's name; empty takes the packaged model, "
        "`none` searches by word alone.",
        parsers.text,
    )
    embedding_url: str = setting(
        "SERVICE_EMBEDDING_URL", "", "Service with OpenAI's embeddings API, such as https://host/v1.", parsers.text
    )
    embedding_key: str = setting("SERVICE_EMBEDDING_KEY", "", "Key for that service.", parsers.text, secret=True)
    embedding_floor: float | None = setting(
        "SERVICE_EMBEDDING_FLOOR",
        None,
        "Similarity below which a note is no match by meaning, from -1 to 1; empty means 0.2 for the packaged model "
        "and no limit for another one.",
        parsers.optional(parsers.number(-1, 1, float)),
    )

    @property
    def vault_names(self) -> tuple[str, ...]:
        """Of SERVICE_VAULTS; the default vault is not among them."""
        return tuple(one.partition("=")[0] for one in self.vaults)
