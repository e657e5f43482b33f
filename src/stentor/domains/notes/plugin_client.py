"""HTTP client of the vault plugin's REST API: one address, one API key, one connection pool.

The plugin's certificate is self-signed, so on https the configured address's certificate is not verified, unless the
caller knows it; requests go to no other address, because redirects are not followed. Proxy variables are ignored.
`plugin_vault` implements the vault port over it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from yarl import URL

from stentor.core.errors import StartRefused
from stentor.core.http_client.outbound import read_body
from stentor.core.lazy_import import lazy_module
from stentor_vault.notes.model import VaultKeyRejected, VaultProtocolError, VaultTimeout, VaultUnreachable

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

CONNECT_SECONDS, TOTAL_SECONDS = 5.0, 30.0
KEEP_ALIVE_SECONDS = 3.0
"""Below the five seconds after which a Node server closes an idle connection, which might just be reused then."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 32
log = logging.getLogger(__name__)
TrustSource = Callable[[], ssl.SSLContext]
"""Returns the context that accepts the certificate of the configured address, which may be renewed."""


class PluginResponseTooLarge(VaultProtocolError):
    """A response of the vault plugin of more than 64 MiB."""


class PluginResponse(msgspec.Struct, frozen=True):
    """A response of the plugin; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The Content-Type in lower case without its parameters, "" without the header."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def error_code(self) -> int:
        """The plugin's `errorCode`, 0 without one."""
        try:
            return int(msgspec.json.decode(self.body)["errorCode"])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, ValueError):
            return 0

    def json(self) -> Any:
        """Return the decoded body. Raises VaultProtocolError."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise VaultProtocolError("The vault plugin returned invalid JSON. Check the plugin's address.") from None

    def to_error(self) -> VaultProtocolError:
        """Return the error for a response that the caller does not expect."""
        code = f" (error code {self.error_code})" if self.error_code else ""
        return VaultProtocolError(f"The vault plugin returned the unexpected status {self.status}{code}.")


class PluginClient:
    """Client of the plugin at `address`, e.g. `https://127.0.0.1:27124`. Raises StartRefused for an invalid one."""

    def __init__(
        self, address: str, key: str, total_seconds: float = TOTAL_SECONDS, trusted: TrustSource | None = None
    ) -> None:
        self._base = parse_base_url(address)
        self._key = key
        self._timeout_s = total_seconds
        self._trusted = trusted
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> PluginResponse:
        """Send one request; `path` is percent-encoded. Return the response, also for a status such as 404 or 412.

        Raises VaultUnreachable, VaultKeyRejected, VaultProtocolError, VaultTimeout.
        """
        try:
            response = await self._send(method, path, headers or {}, body)
        except TimeoutError:
            log.warning("plugin: timeout method=%s", method)
            raise VaultTimeout("The vault plugin did not respond in time. Retry later.") from None
        except (aiohttp.ClientConnectionError, OSError) as error:
            log.warning("plugin: unreachable error=%s", type(error).__name__)
            raise VaultUnreachable("The vault plugin is unreachable. Check that it runs, and its address.") from None
        except (aiohttp.ClientError, ValueError) as error:
            log.warning("plugin: invalid response error=%s", type(error).__name__)
            raise VaultProtocolError("The vault plugin's response is invalid or incomplete.") from None
        _reject_failure(response)
        return response

    async def fetch_version(self) -> str:
        """Return the plugin's version, such as 5.1.0; "" if it has none.

        Raises like `request`, and VaultKeyRejected if the plugin reports that the key is wrong.
        """
        response = await self.request("GET", "/")
        status = response.json() if response.ok else None
        if not isinstance(status, dict) or not isinstance(status.get("authenticated"), bool):
            log.warning("plugin: another server responds, check the plugin's address")
            raise VaultProtocolError("The server at the plugin's address is not the vault plugin. Check the address.")
        # The plugin returns this page without a valid key too.
        if not status["authenticated"]:
            raise _key_rejected()
        versions = status.get("versions")
        version = versions.get("self") if isinstance(versions, dict) else None
        return version if isinstance(version, str) else ""

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> PluginResponse:
        url = URL(f"{self._base}{path}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=min(CONNECT_SECONDS, self._timeout_s))
        # Uncompressed, so that MAX_RESPONSE_BYTES limits what is held in memory.
        all_headers = {"Authorization": f"Bearer {self._key}", "Accept-Encoding": "identity", **headers}
        async with self.session.request(
            method,
            url,
            headers=all_headers,
            data=body,
            ssl=self._ssl_option(url),
            timeout=timeout,
            # A redirect would send the key to another address.
            allow_redirects=False,
        ) as response:
            content = await read_body(response, MAX_RESPONSE_BYTES)
            if content is None:
                raise PluginResponseTooLarge(f"The vault plugin's response is larger than {MAX_RESPONSE_BYTES} bytes.")
            lower_headers = {name.lower(): value for name, value in response.headers.items()}
            return PluginResponse(response.status, lower_headers, content)

    def _ssl_option(self, url: URL) -> ssl.SSLContext | bool:
        """Return False (accept any certificate) for the configured https address, True (verify) for any other.

        With a known certificate, return the context that accepts no other.
        """
        if self._trusted is not None:
            return self._trusted()
        return url.scheme != "https" or url.origin() != URL(self._base, encoded=True).origin()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connection pool, opened on the event loop of the first request."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS)
            # No cookies and no proxy of the environment: notes and the key go only to the configured address.
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets the transports close


def parse_base_url(address: str, variable: str = "The plugin's address") -> str:
    """Return the address without a trailing slash; `variable` is its setting.

    Raises StartRefused if it is not an http(s) address.
    """
    try:
        url = URL(address)
        valid = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except (ValueError, TypeError):
        raise StartRefused(f"{variable} is not an address. Use http://host:port or https://host:port.") from None
    if not valid or url.user or url.password or url.query_string or url.fragment:
        raise StartRefused(
            f"{variable} must be http://host:port or https://host:port, without a name, password or query in it."
        )
    return str(url).rstrip("/")


def vault_path(segments: Sequence[str], *, is_folder: bool = False) -> str:
    """`/vault/...`: each segment percent-encoded for itself; a folder ends in a slash."""
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"/vault/{path}/" if is_folder and path else f"/vault/{path}"


def with_query(path: str, **values: str) -> str:
    return f"{path}?{urlencode(values, quote_via=quote)}"


def _reject_failure(response: PluginResponse) -> None:
    if response.status in (401, 403):
        raise _key_rejected()
    if response.status == 429:
        raise VaultUnreachable("The vault plugin is rate limited. Retry later.")
    if response.status < 200 or 300 <= response.status < 400 or response.status >= 500:
        log.warning("plugin: unexpected status=%d", response.status)
        raise response.to_error()


def _key_rejected() -> VaultKeyRejected:
    message = (
        "The vault plugin rejects this server's API key. Correct NOTES_API_KEY (memory: SERVICE_VAULT_PLUGIN_KEY)."
    )
    log.warning("plugin: key rejected error=%s", message)
    return VaultKeyRejected(message)
