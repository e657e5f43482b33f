"""The fields in which an agent's allow-list is edited: a row for each tool, hosts and ports. Pure.

Operations, hosts and ports are separated by commas or white space; paths, which may have both, stand one on a line.
"""

from __future__ import annotations

from collections.abc import Mapping

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.site.forms import int_or_text

EMPTY_ROWS = 2
"""Rows for further tools."""
TOOL_FIELDS = ("name", "operations", "paths", "limit")
EMPTY_WHITELIST: JsonObject = {"tools": [], "network": {"allowlist": [], "ports": []}}


def read_fields(whitelist: JsonObject) -> dict[str, str]:
    """Return the fields of the form as they are now, with empty rows at the end."""
    fields: dict[str, str] = {}
    for n, tool in enumerate([*whitelist["tools"], *[{}] * EMPTY_ROWS]):
        fields |= {
            f"tool-{n}-name": str(tool.get("name", "")),
            f"tool-{n}-operations": ", ".join(tool.get("operations", [])),
            f"tool-{n}-paths": "\n".join(tool.get("paths", [])),
            f"tool-{n}-limit": str(tool.get("rate_limit") or ""),
        }
    network = whitelist["network"]
    return fields | {"hosts": ", ".join(network["allowlist"]), "ports": ", ".join(map(str, network["ports"]))}


def is_field(name: str) -> bool:
    return name in ("hosts", "ports") or name.startswith("tool-")


def count_rows(fields: Mapping[str, str]) -> int:
    return sum(name.endswith("-name") and name.startswith("tool-") for name in fields)


def build_whitelist(before: Mapping[str, str], after: Mapping[str, str], whitelist: JsonObject) -> JsonObject:
    """Return the allow-list of the edited fields. A row without a name is left out; an unchanged row stays.

    A number that is none stays a text, which the gateway rejects with a message.
    """
    tools = []
    for n in range(count_rows(after)):
        names = [f"tool-{n}-{field}" for field in TOOL_FIELDS]
        if n < len(whitelist["tools"]) and all(before.get(name) == after.get(name) for name in names):
            tools.append(whitelist["tools"][n])
        elif after[names[0]].strip():
            tools.append(_build_tool(*(after.get(name, "").strip() for name in names)))
    ports = [int_or_text(word) for word in split_words(after["ports"])]
    return {"tools": tools, "network": {"allowlist": split_words(after["hosts"]), "ports": ports}}


def _build_tool(name: str, operations: str, paths: str, limit: str) -> JsonObject:
    return {
        "name": name,
        "operations": split_words(operations),
        "paths": [line.strip() for line in paths.splitlines() if line.strip()],
        "rate_limit": int_or_text(limit) if limit else 0,
    }


def split_words(text: str) -> list[str]:
    """Return the words of a text, separated by commas or white space."""
    return text.replace(",", " ").split()
