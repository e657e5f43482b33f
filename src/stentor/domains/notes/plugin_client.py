"""An HTTP client of the vault plugin's REST API: one address, one key, one pool of connections.

The plugin signs its own certificate, so on https the certificate of the configured address is taken as
it is; no other address is ever asked, because redirects are not followed. Proxy variables are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from yarl import URL

from stentor.core.errors import StartRefused
from stentor.core.lazy_import import lazy_module
from stentor_vault.notes.model import VaultKeyRejected, VaultProtocolError, VaultTimeout, VaultUnreachable

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

CONNECT_SECONDS, TOTAL_SECONDS = 5.0, 30.0
KEEP_ALIVE_SECONDS = 3.0
"""Below the five seconds after which a Node server closes a connection that we might just be using again."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of an answer."""
MAX_CONNECTIONS = 32
log = logging.getLogger(__name__)


class PluginResponse(msgspec.Struct, frozen=True):
    """What the plugin answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The type of the content without its parameters, empty without one."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def error_code(self) -> int:
        """The plugin's `errorCode`, 0 without one."""
        try:
            return int(msgspec.json.decode(self.body)["errorCode"])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, ValueError):
            return 0

    def json(self) -> Any:
        """Raises UpstreamBroken."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise VaultProtocolError("The vault plugin answered something that is no JSON.") from None

    def to_error(self) -> VaultProtocolError:
        """The error for an answer that a call has no meaning for."""
        code = f" (its code {self.error_code})" if self.error_code else ""
        return VaultProtocolError(f"The vault plugin answered with status {self.status}{code}.")


class PluginClient:
    """Asks the plugin at `address`, such as `https://127.0.0.1:27124`. Raises StartRefused for no such address."""

    def __init__(self, address: str, key: str, total_seconds: float = TOTAL_SECONDS) -> None:
        self._base = parse_base_url(address)
        self._key = key
        self._seconds = total_seconds
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> PluginResponse:
        """One request; `path` is encoded already. Raises UpstreamDown, KeyRefused, UpstreamBroken, VaultTimeout.

        A status of the caller's own (404, 409, 412 and the like) is an Answer.
        """
        try:
            answer = await self._ask(method, path, headers or {}, body)
        except TimeoutError:
            log.warning("the vault plugin took too long over %s", method)
            raise VaultTimeout("The vault plugin did not answer in time.") from None
        except (aiohttp.ClientConnectionError, OSError) as error:
            log.warning("the vault plugin cannot be reached: %s", type(error).__name__)
            raise VaultUnreachable("The vault plugin cannot be reached; is it running?") from None
        except (aiohttp.ClientError, ValueError) as error:
            log.warning("the vault plugin's answer cannot be read: %s", type(error).__name__)
            raise VaultProtocolError("The vault plugin's answer cannot be read, or broke off.") from None
        _refuse(answer)
        return answer

    async def fetch_version(self) -> str:
        """The plugin's version, such as 5.1.0; empty when it names none.

        Raises like `ask`, and KeyRefused when the plugin says that it does not know the key.
        """
        answer = await self.request("GET", "/")
        said = answer.json() if answer.ok else None
        if not isinstance(said, dict) or not isinstance(said.get("authenticated"), bool):
            log.warning("at the vault plugin's address something else answers; check NOTES_BASE_URL")
            raise VaultProtocolError("At the vault plugin's address something else answers.")
        if not said["authenticated"]:
            raise _key_refused()
        versions = said.get("versions")
        version = versions.get("self") if isinstance(versions, dict) else None
        return version if isinstance(version, str) else ""

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> PluginResponse:
        url = URL(f"{self._base}{path}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=self._seconds, sock_connect=min(CONNECT_SECONDS, self._seconds))
        sent = {"Authorization": f"Bearer {self._key}", "Accept-Encoding": "identity", **headers}
        async with self.session.request(
            method,
            url,
            headers=sent,
            data=body,
            ssl=self._verification(url),
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            content = await _capped(answer)
            return PluginResponse(
                answer.status, {name.lower(): value for name, value in answer.headers.items()}, content
            )

    def _verification(self, url: URL) -> ssl.SSLContext | bool:
        """False takes any certificate: for the configured https address alone."""
        return url.scheme != "https" or url.origin() != URL(self._base, encoded=True).origin()

    @property
    def session(self) -> aiohttp.ClientSession:
        """Opened on the event loop that asks first."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)


def parse_base_url(address: str) -> str:
    """The address without a slash at its end. Raises StartRefused when it is none of a plugin."""
    try:
        url = URL(address)
        valid = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except (ValueError, TypeError):
        raise StartRefused("NOTES_BASE_URL is no address.") from None
    if not valid or url.user or url.password or url.query_string or url.fragment:
        raise StartRefused(
            "NOTES_BASE_URL must be http://host:port or https://host:port, without a name, password or query in it."
        )
    return str(url).rstrip("/")


def vault_path(segments: Sequence[str], *, is_folder: bool = False) -> str:
    """`/vault/...`: each segment percent-encoded for itself; a folder ends in a slash."""
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"/vault/{path}/" if is_folder and path else f"/vault/{path}"


def with_query(path: str, **values: str) -> str:
    return f"{path}?{urlencode(values, quote_via=quote)}"


def _refuse(answer: PluginResponse) -> None:
    if answer.status in (401, 403):
        raise _key_refused()
    if answer.status == 429:
        raise VaultUnreachable("The vault plugin takes no more requests just now.")
    if answer.status < 200 or 300 <= answer.status < 400 or answer.status >= 500:
        log.warning("the vault plugin answered with status %d", answer.status)
        raise answer.to_error()


def _key_refused() -> VaultKeyRejected:
    log.warning("the vault plugin refuses the key; check NOTES_API_KEY")
    return VaultKeyRejected("The vault plugin refuses the key of this server; its operator has to set NOTES_API_KEY.")


async def _capped(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise VaultProtocolError(f"The vault plugin's answer is larger than {MAX_RESPONSE_BYTES} bytes.")
    return bytes(body)
