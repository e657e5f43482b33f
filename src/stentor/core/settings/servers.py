"""Settings: the note store and the governed memory server."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting

MEMORY_CAPABILITIES = ("memory.read", "memory.write")
"""What a caller of the governed memory can be given."""


def capabilities(value: str) -> tuple[str, ...]:
    """Names between commas. An unknown one raises ValueError, or the memory would deny every call without a reason."""
    wanted = kinds.items(value)
    if unknown := [name for name in wanted if name not in MEMORY_CAPABILITIES]:
        raise ValueError(f"may name {' and '.join(MEMORY_CAPABILITIES)}; {unknown[0][:40]!r} is no capability")
    return wanted


@dataclass(frozen=True)
class ServerSettings:
    notes_port: int = setting(
        "SERVICE_NOTES_PORT",
        3000,
        "Port of the note store in `stentor serve`; 0 takes a free one.",
        kinds.number(0, 65535, int),
    )
    mcp_port: int = setting(
        "SERVICE_MCP_PORT", 8082, "Port of the governed memory server; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    mcp_url: str = setting(
        "SERVICE_MCP_URL",
        "",
        "Origin under which clients know the governed memory server, such as https://memory.example.com; empty means "
        "the address that it listens on.",
        kinds.text,
    )
    mcp_hosts: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_HOSTS", (), "More values of Host that the governed memory server answers to.", kinds.hosts
    )
    mcp_origins: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_ORIGINS", (), "More values of Origin, for browsers on other sites.", kinds.hosts
    )
    mcp_principal: str = setting(
        "SERVICE_MCP_PRINCIPAL", "", "Who calls on standard input (`stentor mcp`); blank is denied.", kinds.text
    )
    mcp_namespaces: tuple[str, ...] = setting(
        "SERVICE_MCP_NAMESPACES", (), "Namespaces that it reaches, comma separated; `*` for all.", kinds.items
    )
    mcp_capabilities: tuple[str, ...] = setting(
        "SERVICE_MCP_CAPABILITIES", (), "What it may do: memory.read, memory.write; blank is denied.", capabilities
    )
