"""HTTP to the outside: pooled connections whose resolver is the guard against SSRF.

A target that came through the API may only be a public address (`addresses.py`). The name is resolved once, every
address is checked, and the connection goes to a checked address. No redirects, no proxy variables.
Fails closed: what cannot be judged is refused. Source: docs/security.md.

Which IP addresses are on the public internet: one table of those that are not. Fails closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from stentor.core.errors import InvalidRequest
from stentor.core.http_client import client as http1

if TYPE_CHECKING:
    import aiohttp


MAX_CHECKED_URLS = 1024
"""Addresses that are remembered as ones that may be called."""


class TargetRefused(OSError):
    """The address is not one that the service may call."""


def _number_like(host: str) -> bool:
    """Whether the system may read a name as an IPv4 address: `2130706433`, `127.1`, `0x7f.1`."""
    last = host.lower().rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


class SsrfGuard:
    """Resolves names and literal addresses alike; refuses all that the operator has not allowed."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self._allow = {name.lower() for name in allow}

    def is_allowed(self, host: str, port: int) -> bool:
        return host.lower() in self._allow or f"{host.lower()}:{port}" in self._allow

    async def resolve(self, host: str, port: int) -> list[str]:
        """Where the host may be reached, each address checked. Raises TargetRefused, OSError when there is none."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        self.check_addresses(host, port, addresses)
        return addresses

    def check_addresses(self, host: str, port: int, addresses: list[str]) -> None:
        """Raises TargetRefused."""
        if not self.is_allowed(host, port) and not all(map(is_public_address, addresses)):
            raise TargetRefused(f"{host} is not a public address")


class OutboundHttp:
    """Owns the connections: `session` for all that aiohttp can do, `client` for calls that are made all the time.

    Of the session: `connections` at a time, 0 for any number; names are asked for in the common threads, or in
    `threads` of its own; with `raw` a compressed answer stays as it is, so that a small one cannot become a large one.
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
        self._connections, self._threads, self._raw = max_connections, resolver_threads, keep_compressed
        self._session: aiohttp.ClientSession | None = None
        self._client: http1.HttpClient | None = None
        self._judged: set[str] = set()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Not before it is needed: aiohttp takes a fifth of the time of all imports.
            from stentor.core.http_client.session import create_guarded_session

            self._session = create_guarded_session(
                self._guard, self._connections, self._threads, keep_compressed=self._raw
            )
        return self._session

    @property
    def client(self) -> http1.HttpClient:
        if self._client is None:
            self._client = http1.HttpClient(self._guard.resolve)
        return self._client

    def check_url(self, url: str) -> None:
        """Refuse at once what can be judged without resolving. Raises InvalidRequest."""
        if url in self._judged:
            return
        self._check(url)
        if len(self._judged) < MAX_CHECKED_URLS:
            self._judged.add(url)

    def _check(self, url: str) -> None:
        try:
            # As the clients read it: to them 127。0。0。1 is a literal address, which is never resolved.
            parts, read = urlsplit(url), URL(url)
            host, port = read.raw_host, read.port
        except ValueError:
            raise InvalidRequest("The endpoint is not a valid URL.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not host or not port:
            raise InvalidRequest("The endpoint must be an http or https URL.")
        if parts.username or parts.password or read.user or read.password:
            raise InvalidRequest("The endpoint must not carry credentials.")
        if not self._literal_ok(host, port):
            raise InvalidRequest(
                f"The endpoint's address {host} is not public. The operator can allow it with SERVICE_OUTBOUND_ALLOW."
            )

    def _literal_ok(self, host: str, port: int) -> bool:
        if self._guard.is_allowed(host, port):
            return True
        try:
            return is_public_address(host)
        except ValueError:
            return host.lower().rstrip(".") != "localhost" and not _number_like(host)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.close()


NON_PUBLIC_BLOCKS: dict[str, str] = {
    # IANA IPv4 Special-Purpose Address Registry: all that is not globally reachable.
    # https://www.iana.org/assignments/iana-ipv4-special-registry (RFC 6890, RFC 8190)
    "0.0.0.0/8": "this network (RFC 791)",
    "10.0.0.0/8": "private use (RFC 1918)",
    "100.64.0.0/10": "shared address space (RFC 6598); 100.100.100.200 is the metadata of Alibaba Cloud",
    "127.0.0.0/8": "loopback (RFC 1122)",
    "169.254.0.0/16": "link local (RFC 3927); 169.254.169.254 is the metadata of most clouds, 169.254.170.2 of ECS",
    "172.16.0.0/12": "private use (RFC 1918)",
    # The whole block, not its reserved parts: two anycast addresses in it are reachable, and nothing is served there.
    "192.0.0.0/24": "IETF protocol assignments (RFC 6890); 192.0.0.192 is the metadata of Oracle Cloud",
    "192.0.2.0/24": "documentation, TEST-NET-1 (RFC 5737)",
    "192.88.99.0/24": "6to4 relay anycast, deprecated (RFC 7526)",
    "192.168.0.0/16": "private use (RFC 1918)",
    "198.18.0.0/15": "benchmarking (RFC 2544)",
    "198.51.100.0/24": "documentation, TEST-NET-2 (RFC 5737)",
    "203.0.113.0/24": "documentation, TEST-NET-3 (RFC 5737)",
    "240.0.0.0/4": "reserved, and limited broadcast (RFC 1112, RFC 8190)",
    # IANA IPv4 Multicast Address Space Registry.
    "224.0.0.0/4": "multicast (RFC 5771)",
    # Addresses of the public space that clouds answer themselves.
    "168.63.129.16/32": "platform and metadata of Azure",
    # IANA IPv6 Special-Purpose Address Registry: all that is not globally reachable.
    # https://www.iana.org/assignments/iana-ipv6-special-registry
    "::/128": "unspecified (RFC 4291)",
    "::1/128": "loopback (RFC 4291)",
    "::/96": "IPv4-compatible, deprecated (RFC 4291)",
    "64:ff9b:1::/48": "IPv4/IPv6 translation for local use (RFC 8215)",
    "100::/64": "discard only (RFC 6666)",
    "100:0:0:1::/64": "dummy prefix (RFC 9780)",
    "2001::/23": "IETF protocol assignments, Teredo and ORCHID among them (RFC 2928, RFC 4380, RFC 7343)",
    "2001:db8::/32": "documentation (RFC 3849)",
    "2002::/16": "6to4 (RFC 3056)",
    "3fff::/20": "documentation (RFC 9637)",
    "5f00::/16": "segment routing SIDs (RFC 9602)",
    "fc00::/7": "unique local (RFC 4193); fd00:ec2::254 is the metadata of AWS, fd20:ce::254 of Google Cloud",
    "fe80::/10": "link local (RFC 4291)",
    "fec0::/10": "site local, deprecated (RFC 3879)",
    "ff00::/8": "multicast (RFC 4291)",
}
"""Blocks that no request may go to unless the operator allows the host, each with what it is."""

_BLOCKS = [ipaddress.ip_network(block) for block in NON_PUBLIC_BLOCKS]
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
"""All that IANA has given out of IPv6."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of IPv4 hosts as hosts without IPv4 reach them (RFC 6052); the last 32 bits are the IPv4 address."""


def is_public_address(address: str) -> bool:
    """Whether an address is on the public internet. Mapped and translated forms are what their inner address is.

    Raises ValueError for what is no address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or _translated(ip)
        if inner is not None:
            return is_public_address(str(inner))
        if ip not in _GIVEN_OUT:
            return False
    # 6to4 and Teredo are in the table as a whole: their inner address does not matter any more.
    return not any(ip.version == block.version and ip in block for block in _BLOCKS)


def _translated(ip: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
