"""A vault over a stub of the plugin, and every call of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from tests.vaultplugin.server import PluginStub, plugin

Served = tuple[PluginVault, PluginStub]


@asynccontextmanager
async def serving(root: Path, version: int = 5, seconds: float = 10, **more: Any) -> AsyncIterator[Served]:
    with plugin(root, version, **more) as stub:
        vault = PluginVault(PluginClient(stub.address, stub.key, seconds))
        try:
            yield vault, stub
        finally:
            await vault.close()


CALLS: dict[str, Callable[[PluginVault], Awaitable[object]]] = {
    "read": lambda vault: vault.read("a.md"),
    "content": lambda vault: vault.read_content("a.md"),
    "write": lambda vault: vault.write("a.md", b"x"),
    "delete": lambda vault: vault.delete("a.md"),
    "names": lambda vault: vault.list_folder(),
    "walk": lambda vault: vault.walk(),
    "check": lambda vault: vault.check(),
    "search": lambda vault: vault.search("x"),
    "append": lambda vault: vault.append("a.md", "x"),
    "set_key": lambda vault: vault.set_key("a.md", "k", 1),
}
