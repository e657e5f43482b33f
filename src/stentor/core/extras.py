"""How to install the optional packages of an extra of pyproject.toml, for messages."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return the command; from a checkout, because no version is on PyPI yet."""
    return f"pip install '.[{extra}]' in a checkout"
