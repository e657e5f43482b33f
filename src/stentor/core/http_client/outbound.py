"""Outbound HTTP with protection against SSRF, through `ssrf_guard`. No redirects, no proxy variables."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from stentor.core.errors import InvalidRequest
from stentor.core.http_client import client as http1
from stentor.core.http_client.ssrf_guard import SsrfGuard, is_public_address

if TYPE_CHECKING:
    import aiohttp


MAX_CHECKED_URLS = 1024
"""URLs remembered as allowed, so that they are not checked again."""


def _looks_numeric(host: str) -> bool:
    """Return whether the system may take a host name for an IPv4 address: `2130706433`, `127.1`, `0x7f.1`."""
    last = host.lower().rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


class OutboundHttp:
    """The outbound connections of a service: `session` is aiohttp's, `client` is a fast one for frequent calls.

    The other parameters configure the session: `max_connections` of 0 means no limit; with `resolver_threads` it
    resolves names in threads of its own; with `keep_compressed` it does not decompress responses, so that a small one
    cannot expand to a large one.
    """

    def __init__(
        self,
        allow: tuple[str, ...],
        *,
        max_connections: int = 256,
        resolver_threads: int = 0,
        keep_compressed: bool = False,
    ) -> None:
        self._guard = SsrfGuard(allow)
        self._max_connections, self._resolver_threads = max_connections, resolver_threads
        self._keep_compressed = keep_compressed
        self._session: aiohttp.ClientSession | None = None
        self._client: http1.HttpClient | None = None
        self._checked_urls: set[str] = set()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Imported on first use: aiohttp takes a fifth of the time of all imports.
            from stentor.core.http_client.session import create_guarded_session

            self._session = create_guarded_session(
                self._guard, self._max_connections, self._resolver_threads, keep_compressed=self._keep_compressed
            )
        return self._session

    @property
    def client(self) -> http1.HttpClient:
        if self._client is None:
            self._client = http1.HttpClient(self._guard.resolve)
        return self._client

    def check_url(self, url: str) -> None:
        """Check what can be checked without resolving the host. Raises InvalidRequest.

        For an early error message only; `SsrfGuard` checks the addresses at each connect.
        """
        if url in self._checked_urls:
            return
        self._check(url)
        if len(self._checked_urls) < MAX_CHECKED_URLS:
            self._checked_urls.add(url)

    def _check(self, url: str) -> None:
        try:
            # Parsed as the clients do (yarl), to whom 127。0。0。1 is a literal address, which is never resolved.
            parts, parsed = urlsplit(url), URL(url)
            host, port = parsed.raw_host, parsed.port
        except ValueError:
            raise InvalidRequest("The endpoint is not a valid URL.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not host or not port:
            raise InvalidRequest("The endpoint must be an http or https URL.")
        if parts.username or parts.password or parsed.user or parsed.password:
            raise InvalidRequest("The endpoint must not carry credentials.")
        if not self._may_be_public(host, port):
            entry = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise InvalidRequest(
                f"The endpoint's address {host} is not public. The operator can allow it: add {entry} to "
                "SERVICE_OUTBOUND_ALLOW, whose entries are separated by commas, and restart `stentor serve`."
            )

    def _may_be_public(self, host: str, port: int) -> bool:
        """Return whether the host is allowed, a public address, or a name that must be resolved first."""
        if self._guard.is_allowed(host, port):
            return True
        try:
            return is_public_address(host)
        except ValueError:
            return host.lower().rstrip(".") != "localhost" and not _looks_numeric(host)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.close()


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body, or None as soon as it is longer than `max_bytes`, decompressed. Raises like aiohttp."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)
