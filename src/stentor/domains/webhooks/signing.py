"""Signatures as Standard Webhooks 1.0 has them: HMAC-SHA256 over `id.timestamp.body`, one for each secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

PREFIX = "whsec_"
_BYTES = 32


def new_secret() -> str:
    """`whsec_` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def headers(message_id: str, seconds: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """The three headers of an attempt at a Unix time. `keys` are secrets with their prefix."""
    content = f"{message_id}.{seconds}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(_signature(key, content) for key in keys),
    }


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
