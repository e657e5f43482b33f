"""What is kept of a call: ids, endpoint, status, latency and hashes, never content unless the operator opts in."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from stentor.core import ids

KEPT = 256 * 1024
"""Bytes of a request and of an answer that are kept, when the operator opts in."""


class Evidence:
    """Filled in while the call goes on."""

    def __init__(self, *, content: bool = False, tenant: str = "") -> None:
        self.tenant = tenant
        self.call_id = ids.new_id()
        self.response_id = ""
        self.endpoint = ""
        self.upstream_status: int | None = None
        self.attempts = 0
        self.request_hash = ""
        self.traceparent: str | None = None
        self._keep = content
        self._request = b""
        self._response = bytearray()
        self._hash = hashlib.sha256()
        self._started = time.monotonic()

    def sent(self, endpoint: str, body: bytes) -> None:
        self.endpoint, self.attempts = endpoint, self.attempts + 1
        self.request_hash = hashlib.sha256(body).hexdigest()
        self._hash = hashlib.sha256()
        if self._keep:
            self._request = body[:KEPT]
            self._response.clear()

    def received(self, data: bytes) -> None:
        self._hash.update(data)
        if self._keep and len(self._response) < KEPT:
            self._response += data[: KEPT - len(self._response)]

    @property
    def latency_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def redacted(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "call_id": self.call_id,
            "response_id": self.response_id[:255] or None,
            "endpoint": self.endpoint,
            "upstream_status": self.upstream_status,
            "attempts": self.attempts,
            "request_sha256": self.request_hash,
            "response_sha256": self._hash.hexdigest() if self.upstream_status else None,
        }
        if self._keep:
            found["request"] = self._request.decode("utf-8", "replace")
            found["response"] = self._response.decode("utf-8", "replace")
        return found
