"""Protection against SSRF, and the table of IP addresses that are not public.

A URL that came through the API may only lead to a public address. The host is resolved once, every address is checked,
and the connection goes to a checked address, so DNS rebinding has no effect. Fails closed: a target that cannot be
checked is rejected. Source: docs/security.md.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address


class TargetRefused(OSError):
    """The service may not connect to the address."""


class SsrfGuard:
    """Resolves hosts and rejects addresses that are not public, except hosts that the operator allowed."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self._allow = {name.lower() for name in allow}

    def is_allowed(self, host: str, port: int) -> bool:
        """Return whether the operator allowed the host, with any address."""
        host = host.lower()
        # Hosts come without the brackets that an IPv6 address has in a URL, and in an entry such as [::1]:8443.
        return not self._allow.isdisjoint((host, f"{host}:{port}", f"[{host}]", f"[{host}]:{port}"))

    async def resolve(self, host: str, port: int) -> list[str]:
        """Resolve a host and return its checked addresses. Raises TargetRefused, and OSError for an unknown host."""
        loop = asyncio.get_running_loop()
        results = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        addresses = list(dict.fromkeys(str(item[4][0]) for item in results))
        self.check_addresses(host, port, addresses)
        return addresses

    def check_addresses(self, host: str, port: int, addresses: list[str]) -> None:
        """Raise TargetRefused unless the host is allowed or every address is public.

        One private address is enough to reject the host: nothing decides which of them a connection uses.
        """
        if not self.is_allowed(host, port) and not all(map(is_public_address, addresses)):
            raise TargetRefused(f"{host} is not a public address")


NON_PUBLIC_BLOCKS: dict[str, str] = {
    # IANA IPv4 Special-Purpose Address Registry: everything that is not globally reachable.
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
    # Public addresses that a cloud intercepts.
    "168.63.129.16/32": "platform and metadata of Azure",
    # IANA IPv6 Special-Purpose Address Registry: everything that is not globally reachable.
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
"""Blocks of addresses that are not public, with their purpose."""
_BLOCKS = [ipaddress.ip_network(block) for block in NON_PUBLIC_BLOCKS]
_ALLOCATED = ipaddress.IPv6Network("2000::/3")
"""The part of IPv6 that IANA has allocated."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 addresses for hosts without IPv4 (RFC 6052); the last 32 bits are the IPv4 address."""


def is_public_address(address: str) -> bool:
    """Return whether an address is on the public internet; a mapped or translated one counts as its inner address.

    Raises ValueError if the text is not an address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or _nat64_inner(ip)
        if inner is not None:
            return is_public_address(str(inner))
        if ip not in _ALLOCATED:
            return False
    # All of 6to4 and Teredo is in the table, so their inner addresses need no check.
    return not any(ip.version == block.version and ip in block for block in _BLOCKS)


def _nat64_inner(ip: IPv6Address) -> IPv4Address | None:
    return IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
