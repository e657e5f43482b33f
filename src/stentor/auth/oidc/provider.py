"""An OpenID Connect provider as this service uses it: discovery, the exchange of a code, its keys, and user info.

Authorization code flow with PKCE. The provider's description is fetched on first use and kept for an hour: a start does
not need the provider. Sources: OpenID Connect Core 1.0, Discovery 1.0, RFC 7636 (PKCE).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from stentor.auth.oidc import id_token
from stentor.core import jsontext
from stentor.core.clock import HOUR, SECOND, Clock
from stentor.core.errors import InvalidRequest, ServiceUnavailable, SignInFailed
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module
from stentor.core.settings.installation import SignInSettings

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

T = TypeVar("T")
KEEP_US = HOUR
"""How long the provider's description and keys are kept."""
MIN_REFRESH_US = 30 * SECOND
"""Between two requests for an unknown key: tokens with made-up keys must not call the provider each time."""
TIMEOUT_SECONDS = 10
MAX_BODY_BYTES = 2_000_000
MAX_KEYS = 100
"""Of the provider. All of them may have to be tried, and a key can be made to take milliseconds."""


class ProviderDescription(msgspec.Struct, frozen=True):
    """The parts of the discovery document that are used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _ProviderKeys(msgspec.Struct, frozen=True):
    keys: list[JsonObject]


class Tokens(msgspec.Struct, frozen=True):
    """What the provider gives for a code. No `repr`: both are credentials."""

    id_token: str
    access_token: str = ""

    def __repr__(self) -> str:
        return "Tokens()"


class OidcProvider:
    """The configured provider. All methods raise ServiceUnavailable when it does not answer as specified."""

    def __init__(self, settings: SignInSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        # The operator chose the provider, so it may be on a private address.
        self._http = OutboundHttp((urlsplit(settings.issuer).hostname or "",))
        self._lock = asyncio.Lock()
        self._description: ProviderDescription | None = None
        self._described_at = 0
        self._keys: list[Key] = []
        self._keys_read_at = 0
        self._failures = 0
        self._failure = ""

    async def close(self) -> None:
        await self._http.close()

    async def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return where to send the browser. `verifier` is the PKCE secret, of which only the SHA-256 goes along."""
        digest = hashlib.sha256(verifier.encode()).digest()
        parameters = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = (await self._describe()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange the code of a sign-in for tokens. Raises SignInFailed for a code that the provider rejects."""
        description, settings = await self._describe(), self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        headers = {}
        if not settings.client_secret:
            form["client_id"] = settings.client_id
        elif "client_secret_basic" in description.token_endpoint_auth_methods_supported:
            # RFC 6749, 2.3.1: both are form-encoded first.
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        status, body = await self._request("POST", description.token_endpoint, headers, form)
        if status != 200:
            reason = _text(body, "error_description") or _text(body, "error") or f"HTTP status {status}"
            raise SignInFailed(f"The provider did not accept the code: {reason}")
        try:
            return msgspec.json.decode(body, type=Tokens)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SignInFailed("The provider sent no ID token: request the scope openid.") from None

    async def verify(self, token: str, nonce: str) -> JsonObject:
        """Return the claims of an ID token that was issued just now, with this nonce. Raises SignInFailed."""
        key_id = id_token.read_key_id(token)
        description = await self._describe()
        # Selected by the signature and not only by the id: a provider may have several keys with the same id, or
        # without an id.
        keys = await self._find_keys(
            description.jwks_uri, lambda keys: id_token.is_signed(token, _matching(keys, key_id))
        )
        return id_token.verify(
            token,
            _matching(keys, key_id),
            issuer=description.issuer,
            client_id=self._settings.client_id,
            nonce=nonce,
            now=self._clock.now(),
        )

    async def read_user_info(self, access_token: str) -> JsonObject:
        """Return the claims that the provider gives for an access token; none if it has no user info endpoint."""
        endpoint = (await self._describe()).userinfo_endpoint
        # The token is sent in a header line.
        if not endpoint or not access_token.isascii() or not access_token.isprintable():
            return {}
        status, body = await self._request("GET", endpoint, {"Authorization": f"Bearer {access_token}"})
        if status != 200:
            raise SignInFailed(f"The provider did not say who signed in: HTTP status {status}.")
        claims = jsontext.decode_or_none(body)
        return claims if isinstance(claims, dict) else {}

    async def count_keys(self) -> int:
        """Return how many keys for signatures the provider publishes, after reading its description."""
        return len(await self._find_keys((await self._describe()).jwks_uri, bool))

    async def _describe(self) -> ProviderDescription:
        failures = self._failures
        async with self._lock:
            if self._description is None or self._clock.monotonic() > self._described_at + KEEP_US:
                self._description = await self._read(self._discover, failures)
                self._described_at = self._clock.monotonic()
        return self._description

    async def _read(self, read: Callable[[], Awaitable[T]], failures: int) -> T:
        """Call `read` unless it has failed for others since the count was `failures`. Otherwise, if the provider does
        not answer, each sign-in that waits for the lock would add its own timeout.
        """
        if self._failures > failures:
            raise ServiceUnavailable(self._failure)
        try:
            return await read()
        except ServiceUnavailable as error:
            self._failures, self._failure = self._failures + 1, error.message
            raise

    async def _discover(self) -> ProviderDescription:
        url = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        status, body = await self._request("GET", url)
        try:
            description = msgspec.json.decode(body, type=ProviderDescription)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ServiceUnavailable(
                f"{url} is not the description of a provider (HTTP status {status}): check SERVICE_OIDC_ISSUER."
            ) from None
        # Discovery 1.0, 4.3: otherwise one provider could impersonate another.
        if description.issuer != self._settings.issuer:
            raise ServiceUnavailable(
                f"The provider calls itself {description.issuer[:200]!r}, so SERVICE_OIDC_ISSUER must be exactly that."
            )
        return description

    async def _find_keys(self, url: str, suffice: Callable[[list[Key]], bool]) -> list[Key]:
        """Return the keys of the provider; read them again, at intervals, if the known ones do not suffice."""
        failures = self._failures
        async with self._lock:
            age = self._clock.monotonic() - self._keys_read_at
            if age > KEEP_US or ((age > MIN_REFRESH_US or not self._keys) and not suffice(self._keys)):
                self._keys = await self._read(partial(self._read_keys, url), failures)
                self._keys_read_at = self._clock.monotonic()
            return self._keys

    async def _read_keys(self, url: str) -> list[Key]:
        _, body = await self._request("GET", url)
        try:
            entries = msgspec.json.decode(body, type=_ProviderKeys).keys
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ServiceUnavailable("The provider's keys cannot be read.") from None
        if len(entries) > MAX_KEYS:
            raise ServiceUnavailable(f"The provider publishes {len(entries)} keys; at most {MAX_KEYS} are read.")
        keys = []
        for entry in entries:
            try:
                # No symmetric key: it would be public, so that everybody could sign with it.
                if entry.get("kty") != "oct" and entry.get("use", "sig") == "sig":
                    keys.append(JWKRegistry.import_key(entry))
            except (JoseError, ValueError, TypeError):
                continue  # an unsupported type of key; a token signed with it is refused
        return keys

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        try:
            self._http.check_url(url)
        except InvalidRequest as error:
            # The provider's description named the address, not the person who signs in.
            raise ServiceUnavailable(f"The sign-in provider named {url[:200]!r}. {error.message}") from error
        try:
            async with self._http.session.request(
                method,
                url,
                data=form,
                headers={"Accept": "application/json", **(headers or {})},
                # A redirect would take the code and the client's secret to another address.
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS),
            ) as response:
                if response.status >= 500:
                    host = urlsplit(url).hostname
                    raise ServiceUnavailable(f"The sign-in provider {host} has failed: HTTP status {response.status}.")
                body = b""
                while len(body) < MAX_BODY_BYTES and (chunk := await response.content.read(MAX_BODY_BYTES)):
                    body += chunk
                return response.status, body
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            host, reason = urlsplit(url).hostname, type(error).__name__
            raise ServiceUnavailable(f"The sign-in provider {host} cannot be reached: {reason}.") from error


def _matching(keys: list[Key], key_id: str | None) -> list[Key]:
    """Return the keys with the id that a token names; all of them for a token that names none."""
    return keys if key_id is None else [key for key in keys if key.kid == key_id]


def _text(body: bytes, name: str) -> str:
    """Return the text of a provider's error for people, shortened."""
    data = jsontext.decode_or_none(body)
    value = data.get(name) if isinstance(data, dict) else None
    return "".join(c for c in value if c.isprintable())[:300] if isinstance(value, str) else ""
