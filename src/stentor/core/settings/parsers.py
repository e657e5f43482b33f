"""The description of a setting, and parsers for each type of value.

A parser raises ValueError with a text that continues the variable's name, such as "must be true or false".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

T = TypeVar("T")
Number = TypeVar("Number", int, float)
LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))
TRUE, FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True)
class SettingInfo:
    """The description of one setting; `doc` is published, a `secret` value is never shown."""

    env: str
    doc: str
    parse: Callable[[str], Any]
    secret: bool = False


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    if value.lower() in TRUE | FALSE:
        return value.lower() in TRUE
    raise ValueError("must be true or false")


def number(low: float, high: float, kind: Callable[[str], Number]) -> Callable[[str], Number]:
    """Return a parser for numbers from `low` to `high`; `kind` is int or float."""

    # Not in the notation 1e+06.
    allowed = f"must be a {'whole ' if kind is int else ''}number from {low:.15g} to {high:.15g}"

    def parse(value: str) -> Number:
        try:
            parsed = kind(value)
        except ValueError:
            raise ValueError(allowed) from None
        # Written so that NaN fails too.
        if not low <= parsed <= high:
            raise ValueError(allowed)
        return parsed

    return parse


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return a parser that gives None for a blank value."""
    return lambda value: parse(value) if value else None


def path(value: str) -> Path:
    # `Path("")` is the current folder, which a variable left empty by mistake does not mean.
    return Path(non_blank(value))


def optional_path(value: str) -> Path | None:
    return Path(value) if value else None


def non_blank(value: str) -> str:
    if not value:
        raise ValueError("must not be blank")
    return value


def host_list(value: str) -> tuple[str, ...]:
    """Parse hosts, each with or without a port. Raises ValueError for what would never match, such as a URL."""
    hosts = text_list(value.lower())
    if any(re.search(r"[/\s*]", host) for host in hosts):
        raise ValueError(
            "must be hosts such as llm.internal:8000, comma separated, and neither URLs, networks nor patterns with *"
        )
    return hosts


def host_values(value: str) -> tuple[str, ...]:
    """Parse values of the Host header; `name:*` means any port. Raises ValueError for what would never match."""
    hosts = text_list(value.lower())
    host_list(",".join(host.removesuffix(":*") for host in hosts))
    return hosts


def host_names(value: str) -> tuple[str, ...]:
    """Parse names of hosts, or `*` for any. Raises ValueError for what would never match, such as a port."""
    hosts = text_list(value.lower())
    if not all(host == "*" or re.fullmatch(r"[a-z0-9._-]+", host) or _is_address(host) for host in hosts):
        raise ValueError(
            "must be names such as stentor.example.com, comma separated, without https:// and ports, or * for any; "
            "patterns such as *.example.com are not supported"
        )
    return hosts


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def origin_list(value: str) -> tuple[str, ...]:
    return text_list(value.lower())


def split_web_url(value: str) -> SplitResult | None:
    """Return the parts of an http or https URL with a host, None for any other text."""
    try:
        parts = urlsplit(value)
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_web else None


def namespace(value: str) -> str:
    """Parse the name of a namespace of Kubernetes, a label of RFC 1123; blank means none."""
    if value and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        raise ValueError("must be the name of a namespace: lower-case letters, digits and `-`, at most 63 characters")
    return value


def cluster_list(value: str) -> tuple[str, ...]:
    """Parse addresses of Ray clusters."""
    addresses = text_list(value)
    for address in addresses:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not colon or not host or "/" in host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError("must be a comma-separated list of host:port or ray://host:port")
    return addresses


def text_list(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def line_list(value: str) -> tuple[str, ...]:
    """Parse values that may contain commas: one a line."""
    return tuple(line.strip() for line in value.splitlines() if line.strip())


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of the choices that ignores case."""

    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        return value.lower()

    return parse


def choice_list(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser for a list of which each part is one of the choices."""

    def parse(value: str) -> tuple[str, ...]:
        parts = text_list(value)
        if not set(parts) <= set(choices):
            raise ValueError(f"may contain only {', '.join(choices)}")
        return parts

    return parse


def setting(env: str, default: T, doc: str, parse: Callable[[str], T], *, secret: bool = False) -> T:
    """Declare a dataclass field that `load` reads from the variable `env`."""
    meta = {"meta": SettingInfo(env, doc, parse, secret)}
    return field(default=default, metadata=meta)
