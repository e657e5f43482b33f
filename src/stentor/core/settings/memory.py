"""Settings of the memory: its vaults, their index and the embeddings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting

_VAULT_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def parse_named_folders(value: str) -> tuple[str, ...]:
    """Parse comma-separated `<name>=<folder>` pairs. Raises ValueError for an invalid or repeated name."""
    folders: dict[str, str] = {}
    for part in parsers.text_list(value):
        name, _, folder = (piece.strip() for piece in part.partition("="))
        if not folder or not _VAULT_NAME.fullmatch(name):
            raise ValueError(
                "has a part that is not <name>=<folder>; a name consists of a-z, 0-9 and _ and begins with a letter"
            )
        if name == "default" or name in folders:
            raise ValueError(f"has the name {name!r} twice; `default` is the vault of SERVICE_VAULT_DIR")
        folders[name] = folder
    return tuple(f"{name}={folder}" for name, folder in folders.items())


@dataclass(frozen=True)
class MemorySettings:
    enabled: bool = setting(
        "SERVICE_MEMORY", True, "Whether the memory service runs, with a vault and its search index.", parsers.boolean
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
        "Vaults besides the default one: `<name>=<folder>`, comma separated; a request selects one with `vault`.",
        parse_named_folders,
    )
    plugin_url: str = setting(
        "SERVICE_VAULT_PLUGIN_URL",
        "",
        "URL of a vault plugin that stores the notes instead of a folder, such as https://127.0.0.1:27124.",
        parsers.text,
    )
    plugin_key: str = setting("SERVICE_VAULT_PLUGIN_KEY", "", "API key of the vault plugin.", parsers.text, secret=True)
    tenant: str = setting("SERVICE_VAULT_TENANT", "default", "Tenant whose keys may use the memory.", parsers.text)
    reconcile_seconds: float = setting(
        "SERVICE_VAULT_RECONCILE_SECONDS",
        300.0,
        "Seconds between two comparisons of the whole vault with the index, because file events can be lost.",
        parsers.number(1, 86_400, float),
    )
    poll: bool = setting(
        "SERVICE_VAULT_POLL",
        False,
        "Detect edits by polling; for a vault on a network file system, which reports no file events.",
        parsers.boolean,
    )
    embedding_model: str = setting(
        "SERVICE_EMBEDDING_MODEL",
        "",
        "Folder of a local embedding model, or the model's name if SERVICE_EMBEDDING_URL is set; empty means the "
        "packaged model, `none` disables semantic search.",
        parsers.text,
    )
    embedding_url: str = setting(
        "SERVICE_EMBEDDING_URL",
        "",
        "URL of a service with OpenAI's embeddings API, such as https://host/v1.",
        parsers.text,
    )
    embedding_key: str = setting(
        "SERVICE_EMBEDDING_KEY", "", "API key of the embedding service.", parsers.text, secret=True
    )
    embedding_floor: float | None = setting(
        "SERVICE_EMBEDDING_FLOOR",
        None,
        "Minimum similarity of a semantic match, from -1 to 1; empty means 0.2 with the packaged model, and no minimum "
        "with others.",
        parsers.optional(parsers.number(-1, 1, float)),
    )

    @property
    def vault_names(self) -> tuple[str, ...]:
        """The names in SERVICE_VAULTS; the default vault is not included."""
        return tuple(vault.partition("=")[0] for vault in self.vaults)
