"""For clients of `/mcp` and other programs that hold a receipt: it signs each request that httpx sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stentor.auth.authority.proof import prove
from stentor.core.clock import SystemClock

if TYPE_CHECKING:
    import httpx
    from joserfc.jwk import OKPKey

HEADER = "Receipt-Proof"


class ReceiptAuth:
    """The `auth` of an httpx client (or one of httpx2, which the MCP SDK uses).

    `receipt` is asked for each request, so that it can answer a new receipt before the old one expires. With the
    `holder`'s private key each request brings a proof, which a receipt that is bound to that key needs.
    """

    def __init__(self, receipt: Callable[[], str], holder: OKPKey | None = None) -> None:
        self._receipt = receipt
        self._holder = holder

    def __call__(self, request: httpx.Request) -> httpx.Request:
        token = self._receipt()
        request.headers["Authorization"] = f"Bearer {token}"
        if self._holder is not None:
            target, body = request.url.raw_path.decode("ascii"), request.read()
            now = SystemClock().now()
            request.headers[HEADER] = prove(self._holder, token, request.method, target, body, now=now)
        return request
