"""What a receipt says of itself, for people. Nothing of it may be believed."""

from __future__ import annotations

from typing import Any

from stentor.auth.authority import compact, delegation
from stentor.auth.authority.flaw import Flaw
from stentor.core.errors import InvalidRequest


def decode(chain: str) -> list[dict[str, Any]]:
    """`{header, claims}` of each receipt of the chain, the issuer's first. Raises InvalidRequest."""
    try:
        links = [compact.parse(link) for link in delegation.split(chain)]
    except Flaw as flaw:
        raise InvalidRequest(f"This cannot be read as a receipt: {flaw}.") from None
    return [{"header": link.header, "claims": link.claims} for link in links]
